"""One switch decides which way numbers go."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from sremkit import kernels


def test_on_a_cpu_the_plain_way_is_taken_unless_asked_otherwise() -> None:
    x = torch.zeros(1)
    assert not kernels.uses_triton(x)
    pytest.importorskip("triton", reason="the kernels need Triton")
    with kernels.use("triton"):
        if not torch.cuda.is_available():  # else there is no interpreter
            assert kernels.uses_triton(x)
        with kernels.use("plain"):
            assert not kernels.uses_triton(x)
        assert kernels.backend == "triton"
    assert kernels.backend == "auto"


def test_the_former_backend_comes_back_after_an_error() -> None:
    with pytest.raises(RuntimeError, match="inside"), kernels.use("plain"):
        raise RuntimeError("inside")
    assert kernels.backend == "auto"


def test_use_without_a_block_stays() -> None:
    kernels.use("plain")
    assert kernels.backend == "plain"
    kernels.use("auto")


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="must be 'auto', 'plain' or 'triton', got 'cuda'"):
        kernels.use("cuda")
    assert kernels.backend == "auto"


def test_double_precision_is_refused_by_the_kernels() -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    with kernels.use("triton"), pytest.raises(ValueError, match="float32 at most"):
        kernels.uses_triton(torch.zeros(1, dtype=torch.float64))


def test_numbers_of_a_cpu_need_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with kernels.use("triton"), pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        kernels.uses_triton(torch.zeros(1))


def test_without_triton_the_switch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "has_triton", lambda: False)
    with kernels.use("triton"), pytest.raises(ValueError, match="pip install triton"):
        kernels.uses_triton(torch.zeros(1))


def test_products_are_computed_in_autocasts_format() -> None:
    x = torch.zeros(1)
    assert kernels.compute_dtype(x) == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert kernels.compute_dtype(x) == torch.bfloat16


def test_large_captions_and_many_regions_go_the_plain_way() -> None:
    sizes = {"num_regions": 36, "num_nodes": 60, "sim_dim": 256}
    assert kernels.fits(torch.bfloat16, **sizes)
    assert kernels.fits(torch.float32, **sizes)
    assert not kernels.fits(torch.float32, **{**sizes, "num_nodes": 65})
    assert not kernels.fits(torch.bfloat16, **{**sizes, "num_regions": 65})
    assert not kernels.fits(torch.bfloat16, **{**sizes, "sim_dim": 300})


def test_triton_is_not_loaded_before_a_kernel_is_wanted() -> None:
    program = """
import sys
from sremkit.models import build_matcher
for name in ("imram", "saf", "scan-t2i"):
    build_matcher(name, vocab_size=9, image_dim=4, embed_size=4, word_dim=3)
assert "triton" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
