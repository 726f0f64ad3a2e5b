"""Started by torchrun: adapters in two processes, compared with one process on the joined batch.

Prints from the first process the largest differences: of the loss, of the gradients that DistributedDataParallel
averages, and of what SREM-plus remembers.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sremkit import SREM, SREMPlus, TiledSREM
from sremkit.integrations.open_clip import OpenCLIPLoss


class Encoders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.images, self.texts = nn.Linear(8, 5), nn.Linear(8, 5)
        self.scale, self.bias = nn.Parameter(torch.tensor(6.0)), nn.Parameter(torch.tensor(-2.0))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        features = [e / e.norm(dim=1, keepdim=True) for e in (self.images(x), self.texts(y))]
        return dict(image_features=features[0], text_features=features[1], logit_scale=self.scale, logit_bias=self.bias)


def averaged_gradients(rank: int) -> tuple[float, float]:
    torch.manual_seed(0)
    x, y = torch.randn(40, 8), torch.randn(40, 8)
    alone = Encoders()
    model = nn.parallel.DistributedDataParallel(copy.deepcopy(alone))
    expected = OpenCLIPLoss(SREM(), warmup=0)(**alone(x, y))
    expected.backward()
    own = slice(0, 23) if rank == 0 else slice(23, 40)
    loss = OpenCLIPLoss(TiledSREM(across_processes=True), warmup=0)
    total = loss(**model(x[own], y[own]))
    total.backward()
    pairs = zip(alone.parameters(), model.parameters(), strict=True)
    return float((total - expected).detach().abs()), max(float((a.grad - b.grad).abs().max()) for a, b in pairs)


def joined_memory(rank: int) -> tuple[float, float]:
    """Both processes see half of the batches; one that sees all of them remembers the same."""
    torch.manual_seed(0)
    logits = torch.randn(3, 10, 12, 12) + 5 * torch.eye(12) * (torch.arange(12) % 3 > 0)
    distributed, alone = SREMPlus(120), SREMPlus(120)
    for epoch in range(3):
        warmup = epoch < 2
        order = torch.randperm(120).view(10, 12)
        for number, pair_ids in enumerate(order):
            alone(logits[epoch, number], pair_ids, warmup=warmup)
            if number % 2 == rank:
                distributed(logits[epoch, number], pair_ids, warmup=warmup)
        distributed.finish_epoch()
        alone.method.finish_epoch()
        assert distributed.message() == alone.message(), (distributed.message(), alone.message())
    both = zip(distributed.state_dict().values(), alone.state_dict().values(), strict=True)
    assert alone.clean_prob().min() < 0.5 < alone.clean_prob().max()
    return max(float((a.double() - b.double()).abs().max()) for a, b in both), float(alone.clean_prob().min())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    results = (*averaged_gradients(dist.get_rank()), *joined_memory(dist.get_rank()))
    largest = torch.tensor(results)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print("differences", *largest.tolist(), flush=True)
    dist.barrier()  # a process that leaves early can abort the other one's last collective
    dist.destroy_process_group()
