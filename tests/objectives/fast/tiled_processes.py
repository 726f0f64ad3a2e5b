"""Started by torchrun: the tiled objective of several processes, compared with one process on the joined batch.

Prints a line for each case from the first process: its name, the largest differences of the loss, of statistics
and of gradients over all processes, the number of clean pairs and the largest tensor that an operation made.
"""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sremkit import SREM
from sremkit.objectives.fast.tiled import TiledSREM

STATISTICS = ("energy_i2t", "energy_t2i", "clean_i2t", "weight_t2i", "active_i2t", "active_t2i")
#: Name, pairs of the first and of the second process, logits a block, options.
CASES = [
    ("even", (20, 20), 40 * 3, {}),
    ("uneven", (31, 10), 41 * 7, {}),
    ("all-in-one-block", (13, 14), 1 << 20, {}),
    ("one-without-pairs", (0, 23), 23 * 4, {}),
    ("a-single-pair", (1, 0), 1, {}),
    ("shared-images", (18, 23), 41 * 2, {"ids": True}),
    ("warm-up", (18, 23), 41 * 2, {"ids": True, "warmup": True}),
]


class LargestTensor(TorchDispatchMode):
    """Records the largest result of any operation, in elements."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


class Encoders(nn.Module):
    """Two linear layers, and a scale and a bias that are learned."""

    def __init__(self, d: int = 5) -> None:
        super().__init__()
        self.images, self.texts = nn.Linear(8, d), nn.Linear(8, d)
        self.scale, self.bias = nn.Parameter(torch.tensor(6.0)), nn.Parameter(torch.tensor(-2.0))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        image_emb, text_emb = self.images(x), self.texts(y)
        units = [e / e.norm(dim=1, keepdim=True) for e in (image_emb, text_emb)]
        return (*units, self.scale, self.bias)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name, shares, block_elements, case in CASES:
        options = dict(case)
        g = torch.Generator().manual_seed(sum(shares))
        y = torch.randn(sum(shares), 8, generator=g, dtype=torch.float64)
        x = y + 0.5 * torch.randn(y.shape, generator=g, dtype=torch.float64)
        ids = torch.arange(len(x)) // 3 if options.pop("ids", False) else None
        torch.manual_seed(0)
        encoders = Encoders().double()
        encoders.texts.load_state_dict(encoders.images.state_dict())  # so that most pairs match
        twin = copy.deepcopy(encoders)

        right = SREM().from_embeddings(*twin(x, y), image_ids=ids, **options)
        (2.5 * right.total).backward()
        own = slice(0, shares[0]) if rank == 0 else slice(shares[0], sum(shares))
        criterion = TiledSREM(block_elements=block_elements, across_processes=True)
        with LargestTensor() as seen:
            own_ids = None if ids is None else ids[own]
            found = criterion.from_embeddings(*encoders(x[own], y[own]), image_ids=own_ids, **options)
            (2.5 * found.total).backward()
        for parameter in encoders.parameters():
            dist.all_reduce(parameter.grad)

        loss = float((found.total - right.total).detach().abs() / right.total.detach().abs().clamp_min(1e-3))
        pairs = [(getattr(found, key), getattr(right, key)) for key in STATISTICS]
        statistics = max(float((a.double() - b.double()).abs().max()) for a, b in pairs)
        largest = max(float(q.grad.abs().max()) for q in twin.parameters())
        gradients = max(
            float((p.grad - q.grad).abs().max()) / max(largest, 1e-3)
            for p, q in zip(encoders.parameters(), twin.parameters(), strict=True)
        )
        worst = torch.tensor([loss, statistics, gradients, float(seen.largest)], dtype=torch.float64)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        if rank == 0:
            print(name, *worst.tolist(), int(right.clean_i2t.sum()), flush=True)
    _raises_in_all(rank)
    dist.barrier()  # as `process_group` in sremkit.training.distributed does, and why
    dist.destroy_process_group()


def _raises_in_all(rank: int) -> None:
    """A NaN in one process raises in all of them; otherwise the others would wait forever."""
    x = torch.full((3, 4), torch.nan if rank == 1 else 1.0)
    try:
        TiledSREM(across_processes=True).from_embeddings(x, torch.ones(3, 4), 1.0)
    except ValueError as problem:
        stopped = torch.tensor(float("NaN or infinite" in str(problem)))
    else:
        stopped = torch.tensor(0.0)
    dist.all_reduce(stopped)
    if rank == 0:
        print("stopped", int(stopped), flush=True)


if __name__ == "__main__":
    main()
