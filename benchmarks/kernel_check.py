"""Correctness of the kernels on this device, checked before anything is timed.

Each kernel, and each backbone through its kernels, is compared with plain PyTorch in float64 at two small odd
sizes. The errors printed are norms of differences relative to the norm of the reference; the first one is the
value's, the others are those of the gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.steps import contrastive_backward, make_batch
from sremkit import ops
from sremkit.models import build_matcher
from sremkit.ops.packing import pack

#: images, regions, width, similarity width, words of the captions
SHAPES = [(3, 5, 70, 19, [3, 7, 1, 5]), (5, 36, 200, 256, [25, 8, 13, 1, 19, 31])]


def limits(device: str) -> dict[torch.dtype, float]:
    """Tolerances by dtype; half precision has two to three digits, and a gradient loses one."""
    half = torch.float16 if device == "cpu" else torch.bfloat16  # the interpreter cannot multiply bfloat16
    return {torch.float32: 1e-3, half: 5e-2}


def check_kernels(device: str) -> bool:
    """Compare all kernels and print a line for each; continue when one fails; whether all are correct."""
    results = []
    for shape in SHAPES:
        for name, (inputs, kernel, reference) in _functions(device, *shape).items():
            for dtype, limit in limits(device).items():
                find = partial(_errors, inputs, kernel, reference, dtype)
                results.append(_report(f"{name:<17} {shape[:4]}", dtype, limit, find))
    return all(results)


def check_backbones(device: str) -> bool:
    """The same for small backbones: the errors of the logits, and the largest of a parameter's gradient."""
    results = []
    for name in ("saf", "sgr"):
        for dtype, limit in limits(device).items():
            find = partial(_backbone_errors, name, device, dtype)
            # A whole model accumulates the errors of several kernels.
            results.append(_report(f"{name:<17} (4, 9, 70, 40)", dtype, 4 * limit, find))
    return all(results)


def _report(title: str, dtype: torch.dtype, limit: float, find: Callable[[], list[float]]) -> bool:
    title = f"{title:<36} {str(dtype).removeprefix('torch.'):<9}"
    try:
        errors = find()
    except Exception as error:  # a kernel that does not compile must not hide the results of the others
        print(f"FAILED  {title}: {type(error).__name__}: {str(error)[:500]}", flush=True)
        return False
    good = max(errors) < limit
    print(f"{'right ' if good else 'WRONG '}  {title}: " + " ".join(f"{e:.1e}" for e in errors), flush=True)
    return good


def _backbone_errors(name: str, device: str, dtype: torch.dtype) -> list[float]:
    torch.manual_seed(0)
    options = {
        "vocab_size": 8481,
        "image_dim": 50,
        "embed_size": 70,
        "word_dim": 20,
        "sim_dim": 40,
        "dropout": 0.0,
    }
    right = build_matcher(name, **options).double().to(device).train()
    fused = copy.deepcopy(right).float()
    batch = make_batch(name, 4, words=(1, 9), regions=9, image_dim=50).to(device)
    with ops.use("plain"):
        expected = right(replace(batch, images=cast(Tensor, batch.images).double()))
    half = dtype != torch.float32
    images, texts = fused.encode_images(batch), fused.encode_texts(batch)
    with ops.use("triton"), torch.autocast(device, dtype=dtype if half else torch.bfloat16, enabled=half):
        found = fused.compare(images, texts)
    for logits in (expected, found):
        contrastive_backward(logits)
    pairs = [(p.grad, q.grad) for p, q in zip(fused.parameters(), right.parameters(), strict=True)]
    largest = max(float(y.norm()) for _, y in pairs if y is not None)
    return [
        _error(found.detach(), expected.detach()),
        # The gradient of a bias without effect consists of rounding errors.
        max(_error(x, y) for x, y in pairs if x is not None and y is not None and y.norm() > 1e-3 * largest),
    ]


def _error(found: Tensor, right: Tensor) -> float:
    return ((found.double() - right).norm() / right.norm().clamp_min(1e-6)).item()


def _errors(
    inputs: Sequence[Tensor],
    kernel: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    dtype: torch.dtype,
) -> list[float]:
    found = _value_and_gradients(kernel, inputs, dtype)
    right = _value_and_gradients(reference, inputs, torch.float64)
    return [_error(x, y) for x, y in zip(found, right, strict=True)]


def _value_and_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    # Both get the same rounded inputs.
    leaves = [x.to(torch.bfloat16).to(dtype).requires_grad_() for x in inputs]
    value = function(*leaves)
    g = torch.Generator().manual_seed(1)
    upstream = torch.randn(value.shape, generator=g).to(torch.bfloat16).to(value)
    return [value.detach(), *torch.autograd.grad(value, leaves, upstream)]


def _functions(device: str, n: int, r: int, d: int, s: int, lengths: list[int]) -> dict[str, Any]:
    """Inputs, kernel and reference by name."""
    from sremkit.ops import cross_attention, graph_step, node_pooling, node_projection
    from sremkit.ops.memory_update import memory_update_reference
    from sremkit.ops.triton import cross_attention as attention_kernel
    from sremkit.ops.triton import graph_step as graph_kernels
    from sremkit.ops.triton import node_pooling as pooling_kernels
    from sremkit.ops.triton import node_projection as projection_kernel
    from sremkit.ops.triton.memory_update import memory_update_kernel

    packing = pack((torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)).to(device))
    m, num_words, nodes = len(lengths), sum(lengths), len(lengths) + sum(lengths)
    g = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=g, dtype=torch.float64)).to(device)

    regions = random(n, r, d, scale=d**-0.5)
    mask = torch.ones(n, r, dtype=torch.bool, device=device)
    values = random(n, nodes, s, scale=s**-0.5)
    layer = [values, random(s, s), random(s, scale=0.1)]
    return {
        "unit_attention": (
            [random(n, r, num_words, scale=0.3), regions @ regions.transpose(1, 2)],
            lambda x, gram: attention_kernel.packed_attention(x, gram, mask, packing, scale=9.0),
            lambda x, gram: cross_attention.packed_reference(x, gram, mask, packing, scale=9.0),
        ),
        "memory_update": (
            [
                random(n, num_words, d),
                random(n, num_words, 2 * d),
                random(n, r, num_words).softmax(dim=1),
                random(n, r, 2 * d),
            ],
            memory_update_kernel,
            memory_update_reference,
        ),
        "node_projection": (
            [
                random(n, r, num_words).softmax(dim=1),
                regions,
                random(num_words, d, scale=d**-0.5),
                random(s, d),
                random(s, scale=0.1),
            ],
            lambda *x: projection_kernel.packed_nodes(projection_kernel.Projected(*x), dtype=x[0].dtype),
            node_projection.node_projection_reference,
        ),
        "self_attention": (
            layer,
            lambda x, w, b: graph_kernels.packed_self_attention(x, w, b, packing),
            lambda x, w, b: graph_step.packed_self_attention_reference(x, w, b, packing),
        ),
        "global_attention": (
            layer,
            lambda x, w, b: graph_kernels.packed_self_attention(x, w, b, packing, only_global=True),
            lambda x, w, b: graph_step.packed_self_attention_reference(x, w, b, packing, only_global=True),
        ),
        "relu_linear": (
            layer,
            lambda x, w, b: graph_kernels.relu_linear(x, w, b),
            graph_step.relu_linear_reference,
        ),
        "node_scores": (
            [values, random(1, s), random(1)],
            lambda x, f, b: pooling_kernels.packed_scores(x, f, b, packing)[0],
            lambda x, f, b: node_pooling.packed_scores_reference(x, f, b, packing),
        ),
        "node_sum": (
            [random(n, m, 1 + packing.max_seqlen), values],
            lambda w, x: pooling_kernels.packed_sum(w, x, packing),
            lambda w, x: node_pooling.packed_sum_reference(w, x, packing),
        ),
    }


def can_check(device: str) -> bool:
    """Whether kernels can run: on a CUDA device, or in Triton's interpreter."""
    with ops.use("triton"):
        try:
            return ops.uses_triton(torch.zeros(1, device=device))
        except ValueError:
            return False
