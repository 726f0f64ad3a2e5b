"""How much a training step has to compute and to move, counted by hand.

A product of (m, k) and (k, n) is 2mkn operations; its two gradients are as many each. Bytes are those of the
tensors that have to pass through a device's memory when everything else stays inside of kernels, each once
for every time that it is written or read. With n images, m texts, W words in all, r regions, widths d and s:

    words' attention     affinities 2nrWd, Gram matrix 2nr²d and its use 2nr²W              forward + 2 gradients
    attended vectors     2nrWd: forward, once more backward, and two gradients
    projection           2nWds for words, 2nmds for whole texts                             forward + 2 gradients
    SAF                  4n(m + W)s for filter and sum                                      forward + 2 gradients
    SGR, a full step     4n(m + W)s² for its layers, 4ns sum of squared node counts         forward + 2 gradients
    SGR, the last step   4nms² and 4n(m + W)s: only the global nodes ask                    forward + 2 gradients

At batch 128, captions of 8 to 25 words and the published sizes the projection is most of SAF's 0.8 Tflop; SGR
adds 0.5 in its two full steps, whose tensors of n(m + W)s numbers, 150 MB each in half
precision, also make it bound by memory as much as by arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

from sremkit.models import Matcher


class Sizes(NamedTuple):
    """What a step is fed with."""

    images: int
    regions: int
    image_dim: int
    lengths: list[int]  # words of each text
    itemsize: int  # bytes of a number in products: 2 or 4


class Work(NamedTuple):
    """Operations and bytes of a training step."""

    operations: float
    bytes: float

    def floor(self, operations_a_second: float, bytes_a_second: float) -> float:
        """Seconds that it takes at least: computing and moving go on at the same time."""
        return max(self.operations / operations_a_second, self.bytes / bytes_a_second)


def training_work(matcher: Matcher, sizes: Sizes) -> Work | None:
    """Forward, backward, clipping and Adam; None for a backbone that nobody has counted."""
    if matcher.name not in ("saf", "sgr", "sgraf", "scan-t2i"):
        return None
    parts = ["sgr", "saf"] if matcher.name == "sgraf" else [matcher.name]
    options = {"embed_size": 1024, "word_dim": 300, "sim_dim": 256, "num_steps": 3, **matcher.options}
    counted = [_one_backbone(part, options, sizes) for part in parts]
    numbers = sum(p.numel() for p in matcher.parameters())
    # Read forward and backward, the gradient written, read and scaled by clipping; Adam reads four, writes three.
    parameters = 12 * 4 * numbers
    return Work(sum(w.operations for w in counted), sum(w.bytes for w in counted) + parameters)


def _one_backbone(name: str, options: dict, sizes: Sizes) -> Work:
    n, r, m, W = sizes.images, sizes.regions, len(sizes.lengths), sum(sizes.lengths)
    d, s, item = options["embed_size"], options["sim_dim"], sizes.itemsize
    operations = 4 * n * r * sizes.image_dim * d  # regions: forward and the weight's gradient
    operations += 3 * 2 * (2 * W * 3 * (options["word_dim"] + d) * d)  # a GRU in two directions
    operations += 3 * 2 * n * r * (W * d + r * d + r * W)  # attention of words to regions
    moved = 2 * 4 * n * r * sizes.image_dim + 5 * (item + 4) * n * r * W
    if name == "scan-t2i":
        return Work(operations, moved)
    nodes, squares = m + W, sum((1 + length) ** 2 for length in sizes.lengths)
    operations += 3 * 2 * d * d * (n * r + n + W + m)  # the global vectors' attention
    operations += 4 * 2 * n * r * W * d + 3 * 2 * n * (W + m) * d * s
    node_bytes = item * n * nodes * s
    if name == "saf":
        return Work(operations + 3 * 4 * n * nodes * s, moved + 7 * node_bytes)
    full = options["num_steps"] - 1
    operations += 3 * full * (4 * n * nodes * s * s + 4 * n * s * squares)
    operations += 3 * (4 * n * m * s * s + 4 * n * nodes * s)
    # A full step writes queries, attended and new nodes and reads nodes twice and the others once: 7, and twice
    # as many for the gradients. The last one reads the nodes forward and backward, and writes their gradient.
    return Work(operations, moved + (21 * full + 5) * node_bytes)
