"""Time and memory of a training step of each backbone, beside two loops that compute the same.

`python -m sremkit.bench.backbones` prints a table. A step is encoding, comparison, a contrastive loss and its
gradients, at the published sizes, on random features and captions of 8 to 20 words, or as many as `--most-words`
says. Each measurement has a process of its own, so that its peak memory is its own.

The yardsticks: the caption loop compares one caption with all images at once, as the field's public codes do. The
pair loop is the formula as written, one caption with one image at a time; it is run once, not repeated.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.bench.caption_loops import LOOPS
from sremkit.bench.own_process import in_own_process
from sremkit.bench.pair_loops import PAIR_LOOPS
from sremkit.data.batch import Batch
from sremkit.models import BACKBONES, Encoded, Matcher, build_matcher

By = Literal["ours", "caption loop", "pair loop"]
VOCAB, IMAGE_DIM, REGIONS, SENTENCE_DIM = 8481, 2048, 36, 384
WORDS = {"vocab_size": VOCAB, "image_dim": IMAGE_DIM}
#: Options beside the published sizes. IMRAM runs one direction: both take minutes on a processor.
OPTIONS: dict[str, dict[str, Any]] = {
    "dual": {"image_dim": IMAGE_DIM, "text_dim": SENTENCE_DIM},
    "imram": {**WORDS, "direction": "text"},
    "clip": {"config": {"text_config": {"vocab_size": VOCAB}}},  # CLIP's ViT-B/32
}
#: Without a name given, these are left out: CLIP compares as `dual` does, its time is the transformers'.
LEFT_OUT = ("clip",)


def make_batch(
    name: str,
    batch_size: int,
    *,
    seed: int = 0,
    words: tuple[int, int] = (8, 20),
    regions: int = REGIONS,
    image_dim: int = IMAGE_DIM,
) -> Batch:
    """A random batch of the published sizes; `words` are the fewest and the most of a caption."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(words[0], words[1] + 1, (batch_size,), generator=g)
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    numbers = torch.randint(4, VOCAB, mask.shape, generator=g).masked_fill(~mask, 0)
    pixels = BACKBONES[name].image_input == "pixels"
    shape = (batch_size, 3, 224, 224) if pixels else (batch_size, regions, image_dim)
    return Batch(
        pair_id=torch.arange(batch_size),
        image_id=torch.arange(batch_size),
        images=torch.randn(shape, generator=g),
        region_mask=None if pixels else torch.ones(batch_size, regions, dtype=torch.bool),
        words=numbers,
        word_mask=mask,
        most_words=int(mask.sum()),
        sentences=torch.randn(batch_size, SENTENCE_DIM, generator=g),
    )


def gradients_of(logits: Tensor, extra: Tensor | float = 0.0) -> None:
    """Backward through a contrastive loss."""
    match = torch.arange(len(logits), device=logits.device)
    (F.cross_entropy(logits, match) + F.cross_entropy(logits.T, match) + extra).backward()


def compare(matcher: Matcher, images: Encoded, texts: Encoded, *, by: By) -> Tensor:
    """Logits by the backbone's own comparison, or by one of the loops."""
    if by == "ours":
        return matcher.compare(images, texts)
    loops = LOOPS if by == "caption loop" else PAIR_LOOPS
    return loops[matcher.name](matcher, images, texts)


def measure(
    name: str, *, by: By, batch_size: int, device: str, patience: float, most_words: int = 20
) -> dict[str, float]:
    """Best seconds of a training step and of its comparison alone, each forward and backward.

    Also the peak megabytes that steps take beyond model and batch.

    Args:
        most_words: of a caption; the fewest are 8.
        patience: no further repetition is begun after this many seconds; a pair loop is run once in any case.
    """
    torch.manual_seed(0)
    matcher = build_matcher(name, **OPTIONS.get(name, WORDS)).to(device).train()
    batch = make_batch(name, batch_size, words=(8, most_words)).to(device)
    before = _peak_megabytes(device)

    def step() -> None:
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
        extra = sum(matcher.extra_losses(batch, images).values())
        gradients_of(compare(matcher, images, texts, by=by), extra)

    fewest, most = (1, 1) if by == "pair loop" else (2, 20)
    repeated: dict[str, Any] = {"device": device, "patience": patience, "fewest": fewest, "most": most}
    seconds = _best_seconds(step, matcher, **repeated)
    peak = _peak_megabytes(device) - before
    with torch.no_grad():
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    images, texts = _leaves(images), _leaves(texts)
    compared = _best_seconds(
        lambda: gradients_of(compare(matcher, images, texts, by=by)), matcher, **repeated
    )
    return {"step": seconds, "comparison": compared, "megabytes": peak}


def _leaves(encoded: Encoded) -> Encoded:
    """The same encodings as a starting point of gradients."""
    local, pooled = (None if t is None else t.requires_grad_() for t in (encoded.local, encoded.pooled))
    return Encoded(local, encoded.mask, pooled)


def _best_seconds(
    work: Callable[[], None], matcher: Matcher, *, device: str, patience: float, fewest: int, most: int
) -> float:
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < fewest or (len(times) < most and time.perf_counter() - started < patience):
        matcher.zero_grad(set_to_none=True)
        work_started = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - work_started)
    return min(times)


def _peak_megabytes(device: str) -> float:
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _measured_apart(name: str, *, by: By, arguments: argparse.Namespace) -> dict[str, float]:
    names = ("batch_size", "device", "patience", "most_words")
    return in_own_process(measure, name, by=by, **{name: getattr(arguments, name) for name in names})


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m sremkit.bench.backbones",
        description="Training-step time of each backbone beside a loop over captions and one over pairs.",
    )
    parser.add_argument("backbones", nargs="*", help="names; all but clip unless given")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds to repeat one measurement")
    parser.add_argument("--most-words", type=int, default=20, help="of a caption; the fewest are 8")
    parser.add_argument(
        "--no-pair-loop", action="store_true", help="leave out the loop over pairs, which takes minutes"
    )
    arguments = parser.parse_args(given)
    print(
        f"batch {arguments.batch_size}, {arguments.device}, {torch.get_num_threads()} threads, forward + backward\n"
        "backbone  computed by   whole training step  comparison alone  peak memory"
    )
    for name in arguments.backbones or [name for name in BACKBONES if name not in LEFT_OUT]:
        ours = _measured_apart(name, by="ours", arguments=arguments)
        print(_line(name, "ours", ours, ours), flush=True)
        if name in LOOPS:
            found = _measured_apart(name, by="caption loop", arguments=arguments)
            print(_line(name, "caption loop", found, ours), flush=True)
        if name in PAIR_LOOPS and not arguments.no_pair_loop:
            found = _measured_apart(name, by="pair loop", arguments=arguments)
            print(_line(name, "pair loop", found, ours), flush=True)


def _line(name: str, by: By, found: dict[str, float], ours: dict[str, float]) -> str:
    """Seconds, and of a loop how many times ours they are."""
    line = f"{name:<10}{by:<13}"
    for what, width in (("step", 12), ("comparison", 9)):
        times = "" if by == "ours" else f"{found[what] / ours[what]:.1f}x"
        line += f"{found[what]:>{width}.3f}s {times:>7}"
    return line + f" {found['megabytes']:>9.0f}MB"


if __name__ == "__main__":
    main()
