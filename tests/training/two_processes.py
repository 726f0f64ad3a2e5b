"""Started by torchrun: compares the joined batch of several processes with the same batch in one.

Prints one line for each backbone from the first process: its name and the largest relative differences. The last line
is that of a whole step of a backbone with a loss of its own, by what both tell of it.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.distributed as dist

from sremkit.config.recipes import TrainingSettings
from sremkit.data import Batches, Vocabulary
from sremkit.data.generated.scenes import make_scenes
from sremkit.data.pixels import with_pixels
from sremkit.methods import build_method
from sremkit.models import BACKBONES as BACKBONE_CLASSES
from sremkit.models import Matcher, build_matcher
from sremkit.training.distributed import JointForward, all_reduce_gradients, join_ids
from sremkit.training.step import OptimizerStep, TrackedForward

BACKBONES = ("scan-t2i", "scan-i2t", "imram", "vse-infty", "sgr", "saf", "sgraf", "vit", "clip")
VIT = {"image_size": 16, "patch_size": 8, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.0}


def doubled(batch):
    return type(batch)(**{**vars(batch), "images": batch.images.double()})


def options_of(name: str, vocab_size: int, image_dim: int) -> dict:
    if name == "clip":  # the last layers of one tower only, so that some weights have no gradient
        config = BACKBONE_CLASSES["clip"].small_options["config"]
        text = {**config["text_config"], "vocab_size": vocab_size, "max_position_embeddings": 64}
        return {"config": {**config, "text_config": text}, "image_layers": 1}
    if name == "vit":
        return {"vocab_size": vocab_size, **VIT}
    options = {"sim_dim": 6, "dropout": 0.0} if name in ("sgr", "saf", "sgraf") else {}
    return {"vocab_size": vocab_size, "image_dim": image_dim, "embed_size": 8, "word_dim": 6, **options}


def with_pixels_of(matcher: Matcher, *batches: Batches) -> None:
    for some in batches:
        some.pairs = with_pixels(some.pairs, matcher.image_transform)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = make_scenes(6)
    vocabulary = Vocabulary.build(pairs.texts, min_count=1)
    whole = Batches(pairs, batch_size=11, vocabulary=vocabulary)  # 11 pairs on 2 processes: 6 and 5
    own = Batches(pairs, batch_size=11, vocabulary=vocabulary, shard=(rank, world))
    method = build_method("srem", filtration=False)
    for name in BACKBONES:
        torch.manual_seed(0)
        matcher = build_matcher(name, **options_of(name, len(vocabulary), pairs.image_features.dim)).double()
        twin = copy.deepcopy(matcher)
        if matcher.image_transform is not None:
            with_pixels_of(matcher, whole, own)
        batch = doubled(next(iter(whole.epoch(0))))
        alone = method.loss(twin, batch, warmup=False)
        alone.total.backward()
        part = join_ids(doubled(next(iter(own.epoch(0)))))
        joined = method.loss(TrackedForward(JointForward(matcher)), part, warmup=False)
        joined.total.backward()
        all_reduce_gradients(list(matcher.parameters()))
        assert torch.equal(part.pair_id, batch.pair_id)
        loss = abs(joined.total.item() - alone.total.item()) / abs(alone.total.item())
        # Relative to the largest gradient of the model: a bias before a normalisation has none but rounding.
        largest = max(float(q.grad.abs().max()) for q in twin.parameters() if q.grad is not None)
        grads = [
            float((p.grad - q.grad).abs().max()) / largest
            for p, q in zip(matcher.parameters(), twin.parameters(), strict=True)
            if q.grad is not None
        ]
        for one, other in zip(matcher.buffers(), twin.buffers(), strict=True):  # running estimates
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
        if rank == 0:
            print(name, loss, np.max(grads), int(alone.active_i2t.sum()), flush=True)
    whole.pairs = own.pairs = pairs
    told_of_a_step(whole, own, len(vocabulary))
    dist.barrier()  # as `process_group` in sremkit.training.distributed does, and why
    dist.destroy_process_group()


def told_of_a_step(whole: Batches, own: Batches, vocab_size: int) -> None:
    """The losses that a step reports: the total, and beside it the captioning of VSRN."""
    torch.manual_seed(0)
    sizes = {"vocab_size": vocab_size, "image_dim": whole.pairs.image_features.dim, "caption_size": 7}
    matcher = build_matcher("vsrn", **sizes, embed_size=8, word_dim=6, caption_dropout=0.0).double()
    twin = copy.deepcopy(matcher)
    told = []
    for model, batches, world in ((twin, whole, 1), (matcher, own, dist.get_world_size())):
        step = OptimizerStep(model, build_method("srem"), TrainingSettings(), device=torch.device("cpu"), world=world)
        result = step(doubled(next(iter(batches.epoch(0)))), warmup=False)
        told.append([result.total.item(), result.extra_losses["captioning"].item()])
    (loss, captioning), joined = told
    differences = [abs(joined[0] - loss) / loss, abs(joined[1] - captioning) / captioning]
    everywhere = torch.tensor(joined, dtype=torch.float64)
    dist.all_reduce(everywhere, dist.ReduceOp.MAX)
    assert everywhere.tolist() == joined  # every process tells the same
    if dist.get_rank() == 0:
        print("vsrn", *differences, captioning / loss, flush=True)


if __name__ == "__main__":
    main()
