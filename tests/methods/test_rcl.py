"""RCL: the sum of both directions, in each form; captions of the same image are masked."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from logit_cases import WORKED, different, random_logits
from methods.both_directions import (
    APART,
    ROWS,
    SHARED,
    WRONGLY_JOINED,
    Three,
    batch_of,
    found,
    loss_of,
    slopes,
)
from oracles import contrastive as oracle
from oracles.weighting import sigmoid
from small_models import make_items, small_matcher
from sremkit.methods import build_method
from sremkit.objectives.rcl import rcl

FORMS = ["log", "tan", "abs", "exp", "gce"]
RANDOM = random_logits(ROWS, lift=1.0)


def expected_from(
    logits: torch.Tensor,
    images: list[int] | None,
    *,
    similarity: str = "logit",
    temperature: float = 0.5,
    form: str = "log",
    power: float = 0.5,
) -> Three:
    table = logits.tolist()
    if similarity == "sigmoid":
        table = [[sigmoid(x) for x in row] for row in table]
    return oracle.rcl_both(table, temperature, form, power, images)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("similarity", ["sigmoid", "logit"])
@pytest.mark.parametrize("images", [APART, SHARED], ids=["six images", "three images"])
@pytest.mark.parametrize("masked", [True, False])
def test_the_loss_is_the_sum_of_both_directions(form: str, similarity: str, images: list[int], masked: bool) -> None:
    options = {"similarity": similarity, "temperature": 0.3, "form": form, "power": 0.7}
    method = build_method("rcl", mask_repeated_images=masked, **options)
    expected = expected_from(RANDOM, images if masked else None, **options)
    # Sigmoid scores are float32: seven digits, before a temperature of 0.3 and an exponential.
    digits = 1e-5 if similarity == "sigmoid" else 1e-10
    for warmup in (True, False):
        assert found(loss_of(method, RANDOM, images, warmup=warmup)) == pytest.approx(expected, rel=digits)


def test_without_options_it_is_the_published_log_of_sigmoid_scores_at_a_twentieth() -> None:
    expected = expected_from(RANDOM, SHARED, similarity="sigmoid", temperature=0.05, form="log")
    assert found(loss_of(build_method("rcl"), RANDOM, SHARED)) == pytest.approx(expected, rel=1e-5)


def test_the_loss_by_hand() -> None:
    # exp of the logits is [[5, 2, 1], [2, 1, 5], [1, 2, 3]]. At temperature 1 the negatives' shares are
    #   of the rows, which sum to 8, 8, 6:     2/8 1/8,  2/8 5/8,  1/6 2/6
    #   of the columns, which sum to 8, 5, 9:  2/8 1/8,  2/5 2/5,  1/9 5/9
    # abs adds them up: (3/8 + 7/8 + 1/2) / 3 = 7/12 and (3/8 + 4/5 + 2/3) / 3 = 221/360, together 431/360.
    # log: i2t = -ln(6/8 * 7/8 * 6/8 * 3/8 * 5/6 * 4/6) / 3 = ln(1024/105) / 3, as 6*7*6*3*5*4 / (8^4 * 36) = 105/1024;
    #      t2i = -ln(6/8 * 7/8 * 3/5 * 3/5 * 8/9 * 4/9) / 3 = ln(75/7) / 3, as 21/32 * 9/25 * 32/81 = 7/75.
    by_abs = (431 / 360, 7 / 12, 221 / 360)
    i2t, t2i = math.log(1024 / 105) / 3, math.log(75 / 7) / 3
    for form, expected in (("abs", by_abs), ("log", (i2t + t2i, i2t, t2i))):
        method = build_method("rcl", similarity="logit", temperature=1.0, form=form)
        assert found(loss_of(method, WORKED, [0, 1, 2])) == pytest.approx(expected, rel=1e-12)


def test_the_loss_by_hand_where_the_first_and_the_last_pair_share_an_image() -> None:
    # As above without the corners. Rows: 5 2 -> 2/7;  2 1 5 -> 7/8;  2 3 -> 2/5.  Columns: 5 2 -> 2/7;
    # 2 1 2 -> 4/5;  5 3 -> 5/8. abs: (2/7 + 7/8 + 2/5) / 3 and (2/7 + 4/5 + 5/8) / 3.
    i2t, t2i = (2 / 7 + 7 / 8 + 2 / 5) / 3, (2 / 7 + 4 / 5 + 5 / 8) / 3
    method = build_method("rcl", similarity="logit", temperature=1.0, form="abs")
    assert found(loss_of(method, WORKED, [3, 1, 3])) == pytest.approx((i2t + t2i, i2t, t2i), rel=1e-12)


def test_a_models_logits_are_taken_as_they_are_images_in_rows() -> None:
    images = [0, 1, 0, 2, 3]
    matcher = small_matcher("dual")
    batch = replace(make_items(5).batch("dual"), image_id=torch.tensor(images))
    logits = matcher(batch).detach()
    assert not torch.allclose(logits, logits.T)
    loss = build_method("rcl", similarity="logit", temperature=0.5).loss(matcher, batch, warmup=False)
    assert found(loss) == pytest.approx(expected_from(logits, images), rel=1e-10)


@pytest.mark.parametrize("form", FORMS)
def test_both_directions_teach(form: str) -> None:
    logits = RANDOM.clone().requires_grad_()
    method = build_method("rcl", similarity="logit", temperature=0.5, form=form)
    loss_of(method, logits, SHARED).total.backward()
    expected = slopes(lambda table: oracle.rcl_both(table, 0.5, form, 0.5, SHARED)[0], RANDOM)
    torch.testing.assert_close(logits.grad, expected, rtol=1e-6, atol=1e-8)


def directions(logits: torch.Tensor, *, masks: tuple[bool, bool] = (True, True), temperature: float = 0.5):
    """The losses of rows and of columns; each leaves the captions of its own image out, or does not."""
    valid = different(batch_of(SHARED).image_id)
    rows, columns = (
        rcl(scores, temperature=temperature, valid=valid if mask else None)
        for scores, mask in zip((logits, logits.T), masks, strict=True)
    )
    return rows, columns


def joined(rows: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return rows + columns, rows, columns


NEGATIVES = ROWS - 1
TWINS = {
    **{name: lambda f, twin=twin: twin(*directions(f)) for name, twin in WRONGLY_JOINED.items()},
    "mean for sum of the directions": lambda f: (sum(directions(f)) / 2, *directions(f)),
    "mean for sum of the negatives": lambda f: joined(*(x / NEGATIVES for x in directions(f))),
    "sum for mean of the pairs": lambda f: joined(*(x * ROWS for x in directions(f))),
    "transposed": lambda f: joined(*directions(f.T)),
    "nothing masked": lambda f: joined(*directions(f, masks=(False, False))),
    "masked for images only": lambda f: joined(*directions(f, masks=(True, False))),
    "masked for texts only": lambda f: joined(*directions(f, masks=(False, True))),
    "sigmoid for logit": lambda f: joined(*directions(f.sigmoid())),
    "temperature left out": lambda f: joined(*directions(f, temperature=1.0)),
    "temperature multiplies": lambda f: joined(*directions(f, temperature=2.0)),
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS.keys())
def test_the_oracle_rejects_wrong_twins(twin) -> None:
    expected = expected_from(RANDOM, SHARED)
    assert joined(*directions(RANDOM)) == pytest.approx(expected, rel=1e-10)
    assert twin(RANDOM) != pytest.approx(expected, rel=1e-3)


def with_between(*between: float) -> torch.Tensor:
    """Of four pairs; between the first two they are these."""
    table = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    table[0, 1], table[1, 0] = between
    return table


@pytest.mark.parametrize("similarity", ["sigmoid", "logit"])
@pytest.mark.parametrize("changed", [(4.0, -4.0), (-4.0, 4.0)])
def test_captions_of_one_image_are_masked_by_default(similarity: str, changed: tuple[float, float]) -> None:
    def total(logits: torch.Tensor, images: list[int], **options: object) -> float:
        return loss_of(build_method("rcl", **options), logits, images).total.item()

    options = {"similarity": similarity, "temperature": 0.5}
    shared, apart = [7, 7, 8, 9], [6, 7, 8, 9]
    before, after = with_between(-4.0, -4.0), with_between(*changed)
    assert total(before, shared, **options) == total(after, shared, **options)
    assert total(before, apart, **options) != total(after, apart, **options)
    plain = {**options, "mask_repeated_images": False}
    assert total(after, shared, **plain) == total(after, apart, **plain) != total(after, shared, **options)


@pytest.mark.parametrize("similarity", ["sigmoid", "logit"])
def test_half_precision_logits_are_compared_in_float32(similarity: str) -> None:
    half = RANDOM.bfloat16()
    method = build_method("rcl", similarity=similarity)
    totals = [loss_of(method, logits, SHARED).total for logits in (half, half.float())]
    assert totals[0].dtype == torch.float32
    assert totals[0] == totals[1]
