"""Floating-point operations and memory traffic of a training step, and of scoring: the roofline of a device.

For the backbones of `_FORMULAS` both are derived from the formulas. A product of (m, k) and (k, n) is 2mkn operations;
each of its two gradients is as many. Bytes are those of the tensors that have to pass through the device's memory when
everything else stays inside kernels, counted once for each write and read. With n images, m texts, W words in all, r
regions, widths d and s:

    word attention       affinities 2nrWd, Gram matrix 2nr²d and its use 2nr²W              forward + 2 gradients
    attended vectors     2nrWd: forward, recomputed in backward, and two gradients
    projection           2nWds for words, 2nmds for whole texts                             forward + 2 gradients
    SAF                  4n(m + W)s for filter and sum                                      forward + 2 gradients
    SGR, a full step     4n(m + W)s² for its layers, 4ns sum of squared node counts         forward + 2 gradients
    SGR, the last step   4nms² and 4n(m + W)s: queries of the global nodes only             forward + 2 gradients
    IMRAM, t2i           attention once a step; 4nrd² for regions and 4Wd² for words        forward + 2 gradients
      its updates        attended 4nrWd each, and from the second on 4nWd² for the memory   forward + 2 gradients

At batch 128, captions of 8 to 25 words and the published sizes the projection is most of SAF's 0.8 Tflop; SGR adds
0.5 in its two full steps, whose tensors of n(m + W)s numbers, 150 MB each in bf16, make it bound by memory as much as
by arithmetic.

For the other backbones PyTorch counts the matrix products and convolutions of one eager step, with padding and
recomputation, so a little too many. Bytes are then the features, read forward and backward, and the parameters, which
is less than any step moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.steps import contrastive_backward
from sremkit import ops
from sremkit.data.batch import Batch
from sremkit.models import Matcher

#: Backbones whose work is derived from the formulas, and the parts it is summed over.
_FORMULAS = {
    "saf": ["saf"],
    "sgr": ["sgr"],
    "sgraf": ["sgr", "saf"],
    "scan-t2i": ["scan-t2i"],
    "imram": ["imram"],
}
_DEFAULTS = {"embed_size": 1024, "word_dim": 300, "sim_dim": 256, "num_steps": 3, "direction": "full"}


class Sizes(NamedTuple):
    """Sizes of a step."""

    images: int
    regions: int
    image_dim: int
    lengths: list[int]  # words of each text
    itemsize: int  # bytes of a number in products: 2 or 4

    @classmethod
    def of(cls, batches: Sequence[Batch], *, itemsize: int, images: int | None = None) -> Sizes:
        """All texts of the batches with the images of the first, or with `images` images."""
        first = batches[0].images
        assert first is not None
        masks = [batch.word_mask for batch in batches if batch.word_mask is not None]
        lengths = [length for mask in masks for length in mask.sum(dim=1).tolist()]
        regions, image_dim = first.shape[1:3]
        return cls(images or len(first), regions, image_dim, lengths, itemsize)


class Work(NamedTuple):
    """Operations and bytes of a training step, or of scoring."""

    flops: float
    bytes: float

    def roofline(self, flops_per_second: float, bytes_per_second: float) -> float:
        """Minimum seconds: computing and moving overlap."""
        return max(self.flops / flops_per_second, self.bytes / bytes_per_second)


def training_work(matcher: Matcher, batch: Batch, *, itemsize: int) -> Work:
    """Forward, backward, clipping and Adam: by formula, or as PyTorch counts where there is none."""
    return formula_work(matcher, Sizes.of([batch], itemsize=itemsize)) or counted_work(matcher, batch)


def formula_work(matcher: Matcher, sizes: Sizes) -> Work | None:
    """A training step by formula; None for backbones that have no formula here."""
    parts = _parts(matcher, sizes)
    if parts is None:
        return None
    return Work(
        sum(part.forward * part.in_training for part in parts),
        sum(part.training_bytes for part in parts) + parameter_bytes(matcher),
    )


def scoring_work(matcher: Matcher, sizes: Sizes) -> Work | None:
    """All images with all texts, each encoded once; None for backbones that have no formula here."""
    parts = _parts(matcher, sizes)
    if parts is None:
        return None
    scores = 4 * sizes.images * len(sizes.lengths)
    parameters = 4 * sum(p.numel() for p in matcher.parameters())
    return Work(sum(part.forward for part in parts), sum(part.forward_bytes for part in parts) + parameters + scores)


def parameter_bytes(matcher: Matcher) -> float:
    """Bytes that a step moves of the parameters."""
    # Read forward and backward, the gradient written, read and scaled by clipping; Adam reads four, writes three.
    return 12 * 4 * sum(p.numel() for p in matcher.parameters())


def counted_work(matcher: Matcher, batch: Batch) -> Work:
    """One eager step as PyTorch counts it; leaves no gradients."""
    counter = FlopCounterMode(display=False, custom_mapping=_UNCOUNTED)
    with ops.use("plain"), counter:
        logits, losses = matcher.logits_and_losses(batch)
        contrastive_backward(logits, sum(losses.values()))
    matcher.zero_grad(set_to_none=True)
    inputs = [x for x in (batch.images, batch.sentences) if x is not None]
    moved = sum(2 * x.numel() * x.element_size() for x in inputs)
    return Work(float(counter.get_total_flops()), moved + parameter_bytes(matcher))


def recurrence_flops(x_shape: tuple[int, ...], weight_shapes: list[tuple[int, ...]], *_: Any, **__: Any) -> int:
    """Of a recurrent network in one operation, as in cuDNN: each matrix is applied to each item of a sequence once."""
    items = math.prod(x_shape[:-1])
    return sum(2 * items * math.prod(shape) for shape in weight_shapes if len(shape) == 2)


def _recurrence_backward_flops(*args: Any, **kwargs: Any) -> int:
    return 2 * recurrence_flops(*args, **kwargs)


def _addmm_flops(_: Any, left: tuple[int, int], right: tuple[int, int], **__: Any) -> int:
    return 2 * left[0] * left[1] * right[1]


#: Operations that PyTorch's counter omits.
_UNCOUNTED = {
    torch.ops.aten.addmm_: _addmm_flops,
    torch.ops.aten._cudnn_rnn: recurrence_flops,
    torch.ops.aten._cudnn_rnn_backward: _recurrence_backward_flops,
}


class _Part(NamedTuple):
    """One computation of a backbone: its forward pass, and the multiple of it that training takes."""

    forward: float
    in_training: int
    forward_bytes: float = 0.0
    training_bytes: float = 0.0


def _parts(matcher: Matcher, sizes: Sizes) -> list[_Part] | None:
    if matcher.name not in _FORMULAS:
        return None
    options = {**_DEFAULTS, **matcher.options}
    return [part for name in _FORMULAS[matcher.name] for part in _parts_of(name, options, sizes)]


def _parts_of(name: str, options: dict, sizes: Sizes) -> list[_Part]:
    n, r, m, W = sizes.images, sizes.regions, len(sizes.lengths), sum(sizes.lengths)
    d, s, item = options["embed_size"], options["sim_dim"], sizes.itemsize
    features = 4 * n * r * sizes.image_dim
    # Regions have a gradient by the weight alone. Affinities are written and read, and so is attention; backwards both
    # again, with a gradient in full precision.
    encoders = [
        _Part(2 * n * r * sizes.image_dim * d, 2, features, 2 * features),
        _Part(2 * (2 * W * 3 * (options["word_dim"] + d) * d), 3),  # a GRU in two directions
    ]
    if name == "imram":
        sides = {"text": ["text"], "image": ["image"], "full": ["text", "image"]}[options["direction"]]
        return encoders + [part for side in sides for part in _imram_side(side, options["num_steps"], d, sizes)]
    parts = [
        *encoders,
        _Part(2 * n * r * (W * d + r * d + r * W), 3, 4 * item * n * r * W, 5 * (item + 4) * n * r * W),
    ]
    if name == "scan-t2i":
        return parts
    nodes, squares = m + W, sum((1 + length) ** 2 for length in sizes.lengths)
    node_bytes = item * n * nodes * s
    parts += [
        _Part(2 * d * d * (n * r + n + W + m), 3),  # the global vectors' attention
        _Part(2 * n * r * W * d, 4),
        _Part(2 * n * (W + m) * d * s, 3),
    ]
    if name == "saf":  # forwards nodes are written, and read by the filter and by the sum
        return [*parts, _Part(4 * n * nodes * s, 3, 3 * node_bytes, 7 * node_bytes)]
    full = options["num_steps"] - 1
    # A full step writes queries, attended and new nodes and reads nodes twice and the others once: 7, and twice
    # as many for the gradients. The last one reads the nodes forward and backward, and writes their gradient.
    return [
        *parts,
        _Part(
            full * (4 * n * nodes * s * s + 4 * n * s * squares),
            3,
            7 * full * node_bytes,
            21 * full * node_bytes,
        ),
        _Part(4 * n * m * s * s + 4 * n * nodes * s, 3, 2 * node_bytes, 5 * node_bytes),
    ]


def _imram_side(side: str, steps: int, d: int, sizes: Sizes) -> list[_Part]:
    """IMRAM with the queries of one side, `steps` times."""
    words, regions = sum(sizes.lengths), sizes.images * sizes.regions
    squares = {"text": sizes.images * sizes.regions**2, "image": sum(length**2 for length in sizes.lengths)}
    queries, contexts, items = {
        "text": (words, regions, sizes.images),
        "image": (regions, words, len(sizes.lengths)),
    }[side]
    # Affinities are written and read, and so is attention, as elsewhere.
    moved = 2 * steps * words * regions
    parts = [
        _Part(
            2 * (steps * words * regions * d + squares[side] * (d + steps * queries)),
            3,
            2 * sizes.itemsize * moved,
            5 * (sizes.itemsize + 4) * moved / 2,
        )
    ]
    if steps == 1:
        return parts
    memory = sizes.itemsize * items * queries * d  # bytes
    # A memory is written, and read by the affinities; by the second update also by its product, which is twice as wide
    # and written and read, and by the update itself. Gradients are as many again each.
    forward_bytes = (2 + 8 * (steps - 2)) * memory
    updates = (steps - 1) * 2 * words * regions * 2 * d + (steps - 2) * 2 * items * queries * d * 2 * d
    return [
        *parts,
        _Part(2 * (queries + contexts) * d * 2 * d + updates, 3, forward_bytes, 3 * forward_bytes),
    ]
