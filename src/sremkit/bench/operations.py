"""How much a training step, or scoring, has to compute and to move, counted by hand.

A product of (m, k) and (k, n) is 2mkn operations; its two gradients are as many each. Bytes are those of the
tensors that have to pass through a device's memory when everything else stays inside of kernels, each once
for every time that it is written or read. With n images, m texts, W words in all, r regions, widths d and s:

    words' attention     affinities 2nrWd, Gram matrix 2nr²d and its use 2nr²W              forward + 2 gradients
    attended vectors     2nrWd: forward, once more backward, and two gradients
    projection           2nWds for words, 2nmds for whole texts                             forward + 2 gradients
    SAF                  4n(m + W)s for filter and sum                                      forward + 2 gradients
    SGR, a full step     4n(m + W)s² for its layers, 4ns sum of squared node counts         forward + 2 gradients
    SGR, the last step   4nms² and 4n(m + W)s: only the global nodes ask                    forward + 2 gradients
    IMRAM, words ask     attention once a step; 4nrd² for regions and 4Wd² for words        forward + 2 gradients
      its updates        attended 4nrWd each, and from the second on 4nWd² for the memory   forward + 2 gradients

At batch 128, captions of 8 to 25 words and the published sizes the projection is most of SAF's 0.8 Tflop; SGR
adds 0.5 in its two full steps, whose tensors of n(m + W)s numbers, 150 MB each in half
precision, also make it bound by memory as much as by arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

from sremkit.models import Matcher

#: Backbones that are counted here.
BY_HAND = ("saf", "sgr", "sgraf", "scan-t2i", "imram")


class Sizes(NamedTuple):
    """What a step is fed with."""

    images: int
    regions: int
    image_dim: int
    lengths: list[int]  # words of each text
    itemsize: int  # bytes of a number in products: 2 or 4


class Work(NamedTuple):
    """Operations and bytes of a training step, or of scoring."""

    operations: float
    bytes: float

    def floor(self, operations_a_second: float, bytes_a_second: float) -> float:
        """Seconds that it takes at least: computing and moving go on at the same time."""
        return max(self.operations / operations_a_second, self.bytes / bytes_a_second)


def training_work(matcher: Matcher, sizes: Sizes) -> Work:
    """Forward, backward, clipping and Adam of one of the `BY_HAND`."""
    parts = _parts(matcher, sizes)
    return Work(
        sum(part.forward * part.in_training for part in parts),
        sum(part.training_bytes for part in parts) + parameter_bytes(matcher),
    )


def scoring_work(matcher: Matcher, sizes: Sizes) -> Work:
    """All images with all texts, each encoded once, by one of the `BY_HAND`."""
    parts = _parts(matcher, sizes)
    scores = 4 * sizes.images * len(sizes.lengths)
    numbers = 4 * sum(p.numel() for p in matcher.parameters())
    return Work(
        sum(part.forward for part in parts), sum(part.forward_bytes for part in parts) + numbers + scores
    )


def parameter_bytes(matcher: Matcher) -> float:
    """What a step moves of the parameters."""
    # Read forward and backward, the gradient written, read and scaled by clipping; Adam reads four, writes three.
    return 12 * 4 * sum(p.numel() for p in matcher.parameters())


class _Part(NamedTuple):
    """Something that a backbone computes: its forward pass, and how many times as much training is."""

    forward: float
    in_training: int
    forward_bytes: float = 0.0
    training_bytes: float = 0.0


def _parts(matcher: Matcher, sizes: Sizes) -> list[_Part]:
    if matcher.name not in BY_HAND:
        raise ValueError(f"nobody has counted {matcher.name} by hand; there are {', '.join(BY_HAND)}")
    names = ["sgr", "saf"] if matcher.name == "sgraf" else [matcher.name]
    usual = {"embed_size": 1024, "word_dim": 300, "sim_dim": 256, "num_steps": 3, "direction": "full"}
    options = {**usual, **matcher.options}
    return [part for name in names for part in _parts_of(name, options, sizes)]


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
        return encoders + [part for side in sides for part in _asking(side, options["num_steps"], d, sizes)]
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


def _asking(side: str, steps: int, d: int, sizes: Sizes) -> list[_Part]:
    """IMRAM when one side asks `steps` times."""
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
