"""Before anything is timed: are the kernels right on this device?

Each kernel, and each backbone through its kernels, is compared with plain PyTorch in float64 at two small odd
sizes. The errors printed are lengths of differences as shares of the right tensor's length; the first number
is the value's, the others those of the gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from sremkit import kernels
from sremkit.bench.backbones import gradients_of, make_batch
from sremkit.kernels.packing import pack
from sremkit.models import build_matcher

#: images, regions, width, similarity width, words of the captions
SHAPES = [(3, 5, 70, 19, [3, 7, 1, 5]), (5, 36, 200, 256, [25, 8, 13, 1, 19, 31])]


def limits(device: str) -> dict[torch.dtype, float]:
    """How large an error may be; half precision has two to three digits, and a gradient loses one."""
    half = (
        torch.float16 if device == "cpu" else torch.bfloat16
    )  # Triton's interpreter cannot multiply bfloat16
    return {torch.float32: 1e-3, half: 5e-2}


def check_kernels(device: str) -> bool:
    """Compare all kernels, print a line for each, go on when one fails; whether all were right."""
    verdicts = []
    for shape in SHAPES:
        for name, (inputs, kernel, plain) in _functions(device, *shape).items():
            for dtype, limit in limits(device).items():
                find = partial(_errors, inputs, kernel, plain, dtype)
                verdicts.append(_judged(f"{name:<17} {shape[:4]}", dtype, limit, find))
    return all(verdicts)


def check_backbones(device: str) -> bool:
    """The same for small backbones: the errors of the logits, and the largest of a parameter's gradient."""
    verdicts = []
    for name in ("saf", "sgr"):
        for dtype, limit in limits(device).items():
            find = partial(_backbone_errors, name, device, dtype)
            # A whole model is longer than one kernel.
            verdicts.append(_judged(f"{name:<17} (4, 9, 70, 40)", dtype, 4 * limit, find))
    return all(verdicts)


def _judged(title: str, dtype: torch.dtype, limit: float, find: Callable[[], list[float]]) -> bool:
    title = f"{title:<36} {str(dtype).removeprefix('torch.'):<9}"
    try:
        errors = find()
    except Exception as error:  # a kernel that does not compile must not hide the others
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
    with kernels.use("plain"):
        expected = right(replace(batch, images=cast(Tensor, batch.images).double()))
    half = dtype != torch.float32
    images, texts = fused.encode_images(batch), fused.encode_texts(batch)
    with kernels.use("triton"), torch.autocast(device, dtype=dtype if half else torch.bfloat16, enabled=half):
        found = fused.compare(images, texts)
    for logits in (expected, found):
        gradients_of(logits)
    pairs = [(p.grad, q.grad) for p, q in zip(fused.parameters(), right.parameters(), strict=True)]
    largest = max(float(y.norm()) for _, y in pairs if y is not None)
    return [
        _error(found.detach(), expected.detach()),
        # A bias that has no effect has a gradient of rounding errors, of which no digit is right.
        max(_error(x, y) for x, y in pairs if x is not None and y is not None and y.norm() > 1e-3 * largest),
    ]


def _error(found: Tensor, right: Tensor) -> float:
    return ((found.double() - right).norm() / right.norm().clamp_min(1e-6)).item()


def _errors(
    inputs: Sequence[Tensor], kernel: Callable[..., Tensor], plain: Callable[..., Tensor], dtype: torch.dtype
) -> list[float]:
    found = _value_and_gradients(kernel, inputs, dtype)
    right = _value_and_gradients(plain, inputs, torch.float64)
    return [_error(x, y) for x, y in zip(found, right, strict=True)]


def _value_and_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    # Both get the very same numbers: how inputs are rounded is not what is checked here.
    leaves = [x.to(torch.bfloat16).to(dtype).requires_grad_() for x in inputs]
    value = function(*leaves)
    g = torch.Generator().manual_seed(1)
    upstream = torch.randn(value.shape, generator=g).to(torch.bfloat16).to(value)
    return [value.detach(), *torch.autograd.grad(value, leaves, upstream)]


def _functions(device: str, n: int, r: int, d: int, s: int, lengths: list[int]) -> dict[str, Any]:
    """Inputs, kernel and plain twin by name."""
    from sremkit.kernels import (
        memory_update,
        node_asking,
        node_linear,
        node_projection,
        node_sum,
        node_tells,
        plain_memory,
        region_attention,
    )

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
        "region_attention": (
            [random(n, r, num_words, scale=0.3), regions @ regions.transpose(1, 2)],
            lambda x, gram: region_attention.region_attention(x, gram, mask, packing, scale=9.0),
            lambda x, gram: region_attention.plain_region_attention(x, gram, mask, packing, scale=9.0),
        ),
        "memory_update": (
            [
                random(n, num_words, d),
                random(n, num_words, 2 * d),
                random(n, r, num_words).softmax(dim=1),
                random(n, r, 2 * d),
            ],
            memory_update.memory_update,
            plain_memory.plain_memory_update,
        ),
        "node_projection": (
            [
                random(n, r, num_words).softmax(dim=1),
                regions,
                random(num_words, d, scale=d**-0.5),
                random(s, d),
                random(s, scale=0.1),
            ],
            lambda *x: node_projection.node_projection(node_projection.Projected(*x), dtype=x[0].dtype),
            node_projection.plain_node_projection,
        ),
        "node_asking": (
            layer,
            lambda x, w, b: node_asking.node_asking(x, w, b, packing),
            lambda x, w, b: node_asking.plain_node_asking(x, w, b, packing),
        ),
        "global_asking": (
            layer,
            lambda x, w, b: node_asking.node_asking(x, w, b, packing, only_global=True),
            lambda x, w, b: node_asking.plain_node_asking(x, w, b, packing, only_global=True),
        ),
        "node_linear": (
            layer,
            lambda x, w, b: node_linear.node_linear(x, w, b, relu=True),
            lambda x, w, b: node_linear.plain_node_linear(x, w, b, relu=True),
        ),
        "node_tells": (
            [values, random(1, s), random(1)],
            lambda x, f, b: node_tells.node_tells(x, f, b, packing)[0],
            lambda x, f, b: node_tells.plain_node_tells(x, f, b, packing),
        ),
        "node_sum": (
            [random(n, m, 1 + packing.longest), values],
            lambda w, x: node_sum.node_sum(w, x, packing),
            lambda w, x: node_sum.plain_node_sum(w, x, packing),
        ),
    }


def can_check(device: str) -> bool:
    """Whether kernels run at all: on a CUDA device, or in Triton's interpreter."""
    with kernels.use("triton"):
        try:
            return kernels.uses_triton(torch.zeros(1, device=device))
        except ValueError:
            return False
