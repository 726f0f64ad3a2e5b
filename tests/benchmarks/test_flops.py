"""Operations and bytes of a step: formulas against hand values and against PyTorch's counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.flops import (
    _FORMULAS,
    Sizes,
    Work,
    counted_work,
    formula_work,
    recurrence_flops,
    scoring_work,
    training_work,
)
from benchmarks.steps import make_batch
from sremkit.models import build_matcher


def test_the_work_of_a_small_comparison_by_hand() -> None:
    matcher = build_matcher("scan-t2i", vocab_size=10, image_dim=3, embed_size=2, word_dim=5)
    work = formula_work(matcher, Sizes(images=2, regions=4, image_dim=3, lengths=[3, 1], itemsize=4))
    scoring = scoring_work(matcher, Sizes(images=2, regions=4, image_dim=3, lengths=[3, 1], itemsize=4))
    # n = 2, r = 4, D = 3, W = 4, d = 2, e = 5:
    # regions 4·2·4·3·2 = 192; GRU 3·2·(2·4·3·(5+2)·2) = 2016; attention 3·2·2·4·(4·2 + 4·2 + 4·4) = 1536
    assert work.flops == 192 + 2016 + 1536
    assert scoring.flops == 192 / 2 + 2016 / 3 + 1536 / 3  # without gradients, of which regions have one
    parameters = sum(p.numel() for p in matcher.parameters())
    # features twice 4·2·4·3·2 = 192; affinities and attention 5·8·2·4·4 = 1280; 48 bytes a parameter
    assert work.bytes == 192 + 1280 + 48 * parameters
    # features once 96; affinities and attention 4·4·2·4·4 = 512; 4 bytes a parameter; 2·2 scores of 4 bytes
    assert scoring.bytes == 96 + 512 + 4 * parameters + 16


def test_at_the_published_sizes_the_count_is_as_by_hand() -> None:
    lengths = [16] * 64 + [17] * 64
    options = {"vocab_size": 100, "image_dim": 2048}
    sizes = Sizes(images=128, regions=36, image_dim=2048, lengths=lengths, itemsize=2)
    saf, sgr = (formula_work(build_matcher(name, **options), sizes) for name in ("saf", "sgr"))
    # In 1e12, n = 128, W = 2112, r = 36, d = 1024, s = 256: the projection 6·n·(W + n)·d·s = 0.451, attended
    # vectors 8·n·r·W·d = 0.080, attention 6·n·r·(W·d + r·d + r·W) = 0.063, the GRU 36·W·1324·d = 0.103, the
    # global vectors 6·d²·(n·r + n + W + n) = 0.044, regions 4·n·r·2048·d = 0.039, the filter 0.001: 0.78
    assert saf.flops == pytest.approx(0.78e12, rel=0.01)
    # SGR's two full steps, 2·12·n·(W + n)·s² = 0.451 and 2·12·n·s·sum (1 + w)² = 0.031, and the last one's
    # layers for n global nodes an image, 12·n·n·s² = 0.013; its attention is as much as SAF's filter: 0.495
    assert sgr.flops - saf.flops == pytest.approx(0.495e12, rel=0.01)


def test_the_roofline_is_the_slower_of_computing_and_moving() -> None:
    work = Work(flops=100.0, bytes=10.0)
    assert work.roofline(flops_per_second=10.0, bytes_per_second=5.0) == 10.0
    assert work.roofline(flops_per_second=1000.0, bytes_per_second=5.0) == 2.0


#: Steps that compute nothing twice.
COUNTED = {
    **{name: (name, {"sim_dim": 32}) for name in ("saf", "sgr", "sgraf")},
    "scan-t2i": ("scan-t2i", {}),
    **{f"imram-{side}": ("imram", {"direction": side, "recompute": False}) for side in ("text", "image", "full")},
    "imram-once": ("imram", {"num_steps": 1, "recompute": False}),
}


@pytest.mark.parametrize(("name", "options"), COUNTED.values(), ids=COUNTED)
def test_the_formulas_agree_with_what_pytorch_counts(name: str, options: dict) -> None:
    assert {name for name, _ in COUNTED.values()} == set(_FORMULAS)
    torch.manual_seed(0)
    matcher = build_matcher(name, vocab_size=8481, image_dim=96, embed_size=64, word_dim=40, **options).train()
    batch = make_batch(name, 16, words=(9, 9), regions=36, image_dim=96)
    by_formula = formula_work(matcher, Sizes(16, 36, 96, [9] * 16, 4))
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        matcher(batch)
    scoring = scoring_work(matcher, Sizes(16, 36, 96, [9] * 16, 4))
    assert forward.get_total_flops() == pytest.approx(scoring.flops, rel=0.02)
    # By formula every product has two gradients; PyTorch leaves out those that are not needed.
    assert counted_work(matcher, batch).flops == pytest.approx(by_formula.flops, rel=0.02)
    assert all(p.grad is None for p in matcher.parameters())


def test_pytorch_counts_backbones_without_a_formula() -> None:
    matcher = build_matcher("dual", image_dim=24, text_dim=384, hidden_size=10, embed_size=5).train()
    assert formula_work(matcher, Sizes(1, 1, 4, [1], 4)) is None
    work = training_work(matcher, make_batch("dual", 3, image_dim=24), itemsize=4)
    # Towers 2·3·(24·10 + 10·5 + 384·10 + 10·5) = 25,080 and 3·3 products of width 5, 90; backwards twice as much,
    # but for the gradients by the features, 2·3·(24·10 + 384·10) = 24,480, of which the norms need a row, 8,160.
    assert work.flops == 3 * (25_080 + 90) - 24_480 + 8_160


def test_a_recurrence_in_one_piece_by_hand() -> None:
    # 7 items of width 3 through weights (6, 3) and (6, 2): 2·7·(18 + 12); biases are no products.
    assert recurrence_flops((7, 3), [(6, 3), (6, 2), (6,), (6,)], 4, None) == 2 * 7 * 30
