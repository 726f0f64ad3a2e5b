"""Plain contrastive training as a method: the mean of both directions, over all pairs."""

from __future__ import annotations

import math

import pytest
import torch

from logit_cases import WORKED, random_logits
from methods.both_directions import APART, ROWS, SHARED, WRONGLY_JOINED, found, loss_of, slopes
from oracles import contrastive as oracle
from small_models import make_items, small_matcher
from sremkit.methods import build_method
from sremkit.objectives.contrastive import infonce


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("warmup", [True, False])
@pytest.mark.parametrize("images", [APART, SHARED], ids=["six images", "three images"])
def test_the_loss_is_the_mean_of_both_directions_whatever_the_images(
    seed: int, warmup: bool, images: list[int]
) -> None:
    logits = random_logits(ROWS, seed=seed)
    loss = loss_of(build_method("infonce"), logits, images, warmup=warmup)
    assert found(loss) == pytest.approx(oracle.infonce_both(logits.tolist()), rel=1e-10)


def test_the_loss_by_hand() -> None:
    # exp of the logits is [[5, 2, 1], [2, 1, 5], [1, 2, 3]]; rows sum to 8, 8, 6 and columns to 8, 5, 9.
    # The pairs' shares are 5/8, 1/8, 3/6 of their rows: i2t = -ln(5/8 * 1/8 * 1/2) / 3 = ln(128/5) / 3,
    # and 5/8, 1/5, 3/9 of their columns: t2i = -ln(5/8 * 1/5 * 1/3) / 3 = ln(24) / 3.
    i2t, t2i = math.log(128 / 5) / 3, math.log(24) / 3  # 1.0809 and 1.0594
    loss = loss_of(build_method("infonce"), WORKED, [0, 1, 2])
    assert found(loss) == pytest.approx(((i2t + t2i) / 2, i2t, t2i), rel=1e-12)


def test_a_models_logits_are_taken_as_they_are_images_in_rows() -> None:
    matcher, batch = small_matcher("dual"), make_items(5).batch("dual")
    logits = matcher(batch).detach()
    assert not torch.allclose(logits, logits.T)
    loss = build_method("infonce").loss(matcher, batch, warmup=False)
    assert found(loss) == pytest.approx(oracle.infonce_both(logits.tolist()), rel=1e-10)


def test_both_directions_teach() -> None:
    logits = random_logits(ROWS).requires_grad_()
    loss_of(build_method("infonce"), logits, APART).total.backward()
    expected = slopes(lambda table: oracle.infonce_both(table)[0], logits.detach())
    torch.testing.assert_close(logits.grad, expected, rtol=1e-6, atol=1e-9)


TWINS = {
    **WRONGLY_JOINED,
    "sum for mean of the directions": lambda rows, columns: (rows + columns, rows, columns),
    "sum for mean of the pairs": lambda rows, columns: (ROWS * (rows + columns) / 2, rows, columns),
    "transposed": lambda rows, columns: ((rows + columns) / 2, columns, rows),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    logits = random_logits(ROWS)
    rows, columns = infonce(logits), infonce(logits.T)
    expected = oracle.infonce_both(logits.tolist())
    assert ((rows + columns) / 2, rows, columns) == pytest.approx(expected, rel=1e-10)
    assert twin(rows, columns) != pytest.approx(expected, rel=1e-3)
