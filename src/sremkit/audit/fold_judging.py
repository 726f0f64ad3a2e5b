"""Judging one fold: two witnesses learn from the other folds, then speak about this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from sremkit.audit.better_fits import find_better
from sremkit.audit.competition import Competition, Standing, Witness, join_witnesses
from sremkit.audit.judging_settings import JudgingSettings
from sremkit.audit.linear_witness import fit_linear_witness
from sremkit.audit.surely_wrong import MOST_ROUNDS, make_wrong_pairs
from sremkit.audit.trained_witness import train_witness
from sremkit.audit.vectors import Vectors


@dataclass(frozen=True, eq=False)
class Groups:
    """What is the same for the purposes of judging."""

    of_image: np.ndarray  # (n,) equal for copies of one picture
    of_text: np.ndarray  # (m,) equal for one text in several rows


@dataclass(frozen=True, eq=False)
class JudgedFold:
    """What was found about the pairs of one fold, and about surely wrong pairs made of them."""

    rows: np.ndarray  # (f,) which pairs
    standing: Standing  # (f,)
    better_text: np.ndarray  # (f,)
    better_image: np.ndarray  # (f,)
    candidates: int
    wrong_statistic: np.ndarray  # (w,) of the surely wrong pairs
    wrong_image: np.ndarray  # (w,) their images


def learn_witnesses(
    vectors: Vectors,
    rows: np.ndarray,
    settings: JudgingSettings,
    *,
    seed: int,
    on_step: Callable[[int, int], None] | None = None,
) -> list[Witness]:
    """Both witnesses, from these pairs alone."""
    trained = train_witness(vectors, rows, settings, seed=seed, on_step=on_step)
    pair_rows = torch.from_numpy(rows)
    linear = fit_linear_witness(
        vectors.images, vectors.texts[pair_rows], vectors.image_of_text[pair_rows], trained.belief
    )
    return [linear, trained]


@torch.no_grad()
def judge_fold(
    vectors: Vectors,
    groups: Groups,
    witnesses: list[Witness],
    rows: np.ndarray,
    settings: JudgingSettings,
    *,
    seed: int,
) -> JudgedFold:
    """Let the witnesses, who have not seen these pairs, speak about them."""
    image_of_text = vectors.image_of_text.numpy()
    rounds = int(np.clip(np.ceil(settings.wrong_pairs / np.count_nonzero(vectors.readable)), 1, MOST_ROUNDS))
    wrong = make_wrong_pairs(rows, image_of_text, groups.of_image, groups.of_text, rounds=rounds, seed=seed)
    image_emb, text_emb = join_witnesses(
        witnesses, vectors.images, vectors.texts, (image_of_text[rows], rows), (wrong.image, wrong.text)
    )
    rng = np.random.default_rng([seed, 1])
    candidates = np.sort(rng.permutation(rows)[: settings.candidates])
    competition = Competition(image_emb, text_emb, vectors.image_of_text, torch.from_numpy(candidates))
    better_text, better_image = find_better(
        image_emb, text_emb, vectors.image_of_text, groups.of_image, rows, seed=seed
    )
    return JudgedFold(
        rows=rows,
        standing=competition.standing(image_of_text[rows], rows),
        better_text=better_text,
        better_image=better_image,
        candidates=len(candidates),
        wrong_statistic=competition.standing(wrong.image, wrong.text, wrong.hidden).statistic,
        wrong_image=wrong.image,
    )
