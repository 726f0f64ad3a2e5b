"""One switch chooses between kernels and plain PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from sremkit import ops


def test_on_a_cpu_plain_pytorch_is_used_unless_set_otherwise() -> None:
    x = torch.zeros(1)
    assert not ops.uses_triton(x)
    pytest.importorskip("triton", reason="the kernels need Triton")
    with ops.use("triton"):
        if not torch.cuda.is_available():  # else there is no interpreter
            assert ops.uses_triton(x)
        with ops.use("plain"):
            assert not ops.uses_triton(x)
        assert ops.backend == "triton"
    assert ops.backend == "auto"


def test_the_previous_backend_is_restored_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="inside"), ops.use("plain"):
        raise RuntimeError("inside")
    assert ops.backend == "auto"


def test_use_without_a_block_is_permanent() -> None:
    ops.use("plain")
    assert ops.backend == "plain"
    ops.use("auto")


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 'auto', 'plain' or 'triton', got 'cuda'"):
        ops.use("cuda")
    assert ops.backend == "auto"


def test_double_precision_is_refused_by_the_kernels() -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    with ops.use("triton"), pytest.raises(ValueError, match="float32 at most"):
        ops.uses_triton(torch.zeros(1, dtype=torch.float64))


def test_cpu_tensors_need_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with ops.use("triton"), pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        ops.uses_triton(torch.zeros(1))


def test_without_triton_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "has_triton", lambda: False)
    with ops.use("triton"), pytest.raises(ValueError, match="pip install triton"):
        ops.uses_triton(torch.zeros(1))


def test_products_have_autocasts_dtype() -> None:
    x = torch.zeros(1)
    assert ops.compute_dtype(x) == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ops.compute_dtype(x) == torch.bfloat16


def test_the_kernels_support_limited_sizes() -> None:
    sizes = {"num_regions": 36, "num_nodes": 60, "sim_dim": 256}
    assert ops.kernels_support(torch.bfloat16, **sizes)
    assert ops.kernels_support(torch.float32, **sizes)
    assert not ops.kernels_support(torch.float32, **{**sizes, "num_nodes": 65})
    assert not ops.kernels_support(torch.bfloat16, **{**sizes, "num_regions": 65})
    assert not ops.kernels_support(torch.bfloat16, **{**sizes, "sim_dim": 300})


def test_triton_is_not_imported_before_a_kernel_runs() -> None:
    program = """
import sys
from sremkit.models import BACKBONES, build_matcher
for name in BACKBONES:
    if BACKBONES[name].text_input == "words" and BACKBONES[name].image_input == "regions":
        build_matcher(name, vocab_size=9, image_dim=4, embed_size=4, word_dim=3)
assert "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
