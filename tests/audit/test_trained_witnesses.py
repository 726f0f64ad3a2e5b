"""Several trained witnesses: each starts elsewhere, all are heard, and the work of all is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from made_pairs import SMALL, make_pairs
from sremkit.audit import fold_judging
from sremkit.audit.fold_judging import learn_witnesses
from sremkit.audit.trained_witness import TrainedWitness
from sremkit.audit.vectors import read_vectors
from sremkit.errors import DataError


@pytest.fixture(scope="module")
def vectors():
    return read_vectors(make_pairs(num_images=60)[0])


def test_every_witness_starts_elsewhere_and_the_first_is_that_of_a_single_one(vectors) -> None:
    rows = np.arange(180)
    _, alone = learn_witnesses(vectors, rows, replace(SMALL, trained_witnesses=1), seed=4)
    _, first, second = learn_witnesses(vectors, rows, replace(SMALL, trained_witnesses=2), seed=4)
    same, other = (
        torch.allclose(alone.encode_images(vectors.images), witness.encode_images(vectors.images))
        for witness in (first, second)
    )
    assert (same, other) == (True, False)


def test_the_linear_witness_hears_the_mean_belief(vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    beliefs = iter([torch.zeros(180), torch.full((180,), 0.5)])
    heard = []
    monkeypatch.setattr(
        fold_judging, "train_witness", lambda *args, **options: TrainedWitness(None, next(beliefs))
    )
    monkeypatch.setattr(fold_judging, "fit_linear_witness", lambda *args: heard.append(args[-1]))
    learn_witnesses(vectors, np.arange(180), replace(SMALL, trained_witnesses=2), seed=0)
    torch.testing.assert_close(heard[0], torch.full((180,), 0.25))


def test_the_steps_of_all_witnesses_are_counted_together(vectors) -> None:
    told: list[tuple[int, int]] = []
    learn_witnesses(
        vectors, np.arange(180), SMALL, seed=0, on_step=lambda done, total: told.append((done, total))
    )
    done = [step for step, _ in told]
    assert done == list(range(1, len(told) + 1))
    assert {total for _, total in told} == {len(told)}


def test_without_a_trained_witness_there_is_no_belief() -> None:
    with pytest.raises(DataError, match="trained_witnesses must be 1 or more"):
        replace(SMALL, trained_witnesses=0)
