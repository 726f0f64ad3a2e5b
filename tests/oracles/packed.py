"""What the kernels compute, one image, one caption, one word and one region at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

EPS = 1e-8


def unit_attention(affinity: Tensor, gram: Tensor, region_mask: Tensor, lengths: list[int], scale: float) -> Tensor:
    """(n, r, W): attention divided by the norm of the attended vector."""
    images = []
    for i in range(len(affinity)):
        present = [k for k in range(affinity.shape[1]) if region_mask[i, k]]
        columns, start = [], 0
        for length in lengths:
            caption = affinity[i, :, start : start + length]
            start += length
            clipped = torch.where(caption > 0, caption, 0.1 * caption)
            for word in range(length):
                scores = {k: scale * clipped[k, word] / (clipped[k].pow(2).sum().sqrt() + EPS) for k in present}
                total = sum(math.e**score for score in scores.values())
                zero = affinity.new_zeros(())
                a = [math.e ** scores[k] / total if k in scores else zero for k in range(affinity.shape[1])]
                square = sum(a[k] * gram[i, k, q] * a[q] for k in present for q in present)
                columns.append(torch.stack(a) / (torch.as_tensor(square).sqrt() + EPS))
        images.append(torch.stack(columns, dim=1))
    return torch.stack(images)


def node_projection(attention: Tensor, regions: Tensor, words: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(n, W, s): unit vectors of P (c - w)² + b."""
    images = []
    for i in range(len(attention)):
        rows = []
        for j in range(len(words)):
            context = sum(attention[i, k, j] * regions[i, k] for k in range(attention.shape[1]))
            z = bias + torch.stack([(row * (context - words[j]) ** 2).sum() for row in weight])
            rows.append(z / (z.pow(2).sum().sqrt() + EPS))
        images.append(torch.stack(rows))
    return torch.stack(images)


def memory_update(memory: Tensor, from_memory: Tensor, attention: Tensor, from_contexts: Tensor) -> Tensor:
    """(c, Q, d): one query of one item at a time; tensors of one item are shared by all."""
    width, items = memory.shape[2], []
    for c in range(len(attention)):
        rows = []
        for q in range(attention.shape[2]):
            old, x = memory[min(c, len(memory) - 1), q], from_memory[min(c, len(from_memory) - 1), q]
            for k in range(attention.shape[1]):
                x = x + attention[c, k, q] * from_contexts[c, k]
            gate = 1 / (1 + torch.exp(-x[:width]))
            rows.append(gate * old + (1 - gate) * torch.tanh(x[width:]))
        items.append(torch.stack(rows))
    return torch.stack(items)


def caption_rows(lengths: list[int]) -> list[list[int]]:
    """Rows of each caption's nodes: its global node, then its words, which come after all global nodes."""
    rows, start = [], len(lengths)
    for j, length in enumerate(lengths):
        rows.append([j, *range(start, start + length)])
        start += length
    return rows


def node_attention(queries: Tensor, nodes: Tensor, lengths: list[int]) -> Tensor:
    """In the shape of `queries`, which holds all nodes or the global ones alone."""
    out = [[torch.zeros(())] * queries.shape[1] for _ in range(len(queries))]
    for i in range(len(queries)):
        for rows in caption_rows(lengths):
            for q in rows:
                if q < queries.shape[1]:
                    weight = [(queries[i, q] * nodes[i, k]).sum().exp() for k in rows]
                    out[i][q] = sum(w * nodes[i, k] for w, k in zip(weight, rows, strict=True)) / sum(weight)
    return torch.stack([torch.stack(image) for image in out])


def node_sum(weights: Tensor, nodes: Tensor, lengths: list[int]) -> Tensor:
    """(n, m, s): weighted sums of each caption's nodes; `weights` (n, m, 1 + max_seqlen)."""
    return torch.stack(
        [
            torch.stack(
                [
                    sum(weights[i, j, p] * nodes[i, k] for p, k in enumerate(rows))
                    for j, rows in enumerate(caption_rows(lengths))
                ]
            )
            for i in range(len(nodes))
        ]
    )


def node_self_attention(
    nodes: Tensor, weight: Tensor, bias: Tensor, lengths: list[int], *, only_global: bool
) -> Tensor:
    """Attention whose queries are a linear function of all nodes, or of the global ones."""
    queries = linear(nodes[:, : len(lengths)] if only_global else nodes, weight, bias)
    return node_attention(queries, nodes, lengths)


def linear(x: Tensor, weight: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """(n, rows, t): one element at a time."""
    images = []
    for image in x:
        rows = []
        for vector in image:
            numbers = [(row * vector).sum() + b for row, b in zip(weight, bias, strict=True)]
            rows.append(torch.stack([y if y > 0 or not relu else y * 0 for y in numbers]))
        images.append(torch.stack(rows))
    return torch.stack(images)


def node_scores(nodes: Tensor, weight: Tensor, bias: Tensor, lengths: list[int]) -> Tensor:
    """(n, m, 1 + max_seqlen): one score a node, 0 where a caption has none."""
    out = []
    for image in nodes:
        captions = []
        for rows in caption_rows(lengths):
            numbers = [(image[k] * weight[0]).sum() + bias[0] for k in rows]
            absent = [nodes.new_zeros(())] * (max(lengths) - len(rows) + 1)
            captions.append(torch.stack(numbers + absent))
        out.append(torch.stack(captions))
    return torch.stack(out)
