"""Judging one fold: the witnesses learn from the other folds, then speak about this one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.better_fits import find_better
from sremkit.audit.competition import (
    Competition,
    Say,
    Standing,
    Witness,
    join_encoded,
    measure_witnesses,
)
from sremkit.audit.judging_settings import JudgingSettings
from sremkit.audit.linear_witness import fit_linear_witness
from sremkit.audit.surely_wrong import MOST_ROUNDS, WrongPairs, make_wrong_pairs
from sremkit.audit.trained_witness import train_witness
from sremkit.audit.vectors import Vectors
from sremkit.audit.word_judging import JudgedWords, judge_words
from sremkit.audit.word_witness import WordWitness

NEXT_START = 1_000_003  # between the seeds of one fold's witnesses; the folds' own seeds follow each other


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
    words: JudgedWords | None = None  # what the word witness said, where there was one


def learn_witnesses(
    vectors: Vectors,
    rows: np.ndarray,
    settings: JudgingSettings,
    *,
    seed: int,
    on_step: Callable[[int, int], None] | None = None,
) -> list[Witness]:
    """The linear witness and the trained ones, from these pairs alone."""
    trained = []
    for number in range(settings.trained_witnesses):
        trained.append(
            train_witness(
                vectors,
                rows,
                settings,
                seed=seed + number * NEXT_START,
                on_step=_steps_of_witness(on_step, number, settings.trained_witnesses),
            )
        )
    belief = torch.stack([witness.belief for witness in trained]).mean(dim=0)
    pair_rows = torch.from_numpy(rows)
    linear = fit_linear_witness(
        vectors.images, vectors.texts[pair_rows], vectors.image_of_text[pair_rows], belief
    )
    return [linear, *trained]


def _steps_of_witness(
    on_step: Callable[[int, int], None] | None, number: int, witnesses: int
) -> Callable[[int, int], None] | None:
    """Tells of the steps of one witness as a part of those of all."""
    if on_step is None:
        return None
    return lambda done, total: on_step(number * total + done, witnesses * total)


@dataclass(frozen=True, eq=False)
class Hearing:
    """The witnesses' view of one fold, and whom its pairs are compared with."""

    says: list[Say]
    image_emb: Tensor  # (n, d) and text_emb (m, d): their products are the logits F
    text_emb: Tensor
    candidates: np.ndarray  # (c,) rows
    competition: Competition
    wrong: WrongPairs

    def wrong_statistic(self) -> np.ndarray:
        return self.competition.standing(self.wrong.image, self.wrong.text, self.wrong.hidden).statistic


@torch.no_grad()
def hear_witnesses(
    vectors: Vectors,
    groups: Groups,
    witnesses: list[Witness],
    rows: np.ndarray,
    settings: JudgingSettings,
    *,
    seed: int,
    num_images: int | None = None,
) -> Hearing:
    """Let the witnesses, who have not seen these pairs, look at them.

    Args:
        num_images: how many pictures there are in all, where `vectors` holds but some of them.
    """
    image_of_text = vectors.image_of_text.numpy()
    rounds = int(np.clip(np.ceil(settings.wrong_pairs / np.count_nonzero(vectors.readable)), 1, MOST_ROUNDS))
    wrong = make_wrong_pairs(
        rows,
        image_of_text,
        groups.of_image,
        groups.of_text,
        rounds=rounds,
        seed=seed,
        num_images=num_images,
    )
    encoded = [(w.encode_images(vectors.images), w.encode_texts(vectors.texts)) for w in witnesses]
    says = measure_witnesses(encoded, (image_of_text[rows], rows), (wrong.image, wrong.text))
    image_emb, text_emb = join_encoded(encoded, says)
    rng = np.random.default_rng([seed, 1])
    candidates = np.sort(rng.permutation(rows)[: settings.candidates])
    competition = Competition(image_emb, text_emb, vectors.image_of_text, torch.from_numpy(candidates))
    return Hearing(says, image_emb, text_emb, candidates, competition, wrong)


@torch.no_grad()
def judge_fold(
    vectors: Vectors,
    groups: Groups,
    witnesses: list[Witness],
    rows: np.ndarray,
    settings: JudgingSettings,
    *,
    seed: int,
    word_witness: WordWitness | None = None,
) -> JudgedFold:
    """Let the witnesses, who have not seen these pairs, speak about them."""
    hearing = hear_witnesses(vectors, groups, witnesses, rows, settings, seed=seed)
    better_text, better_image = find_better(
        hearing.image_emb, hearing.text_emb, vectors.image_of_text, groups.of_image, rows, seed=seed
    )
    return JudgedFold(
        rows=rows,
        standing=hearing.competition.standing(vectors.image_of_text.numpy()[rows], rows),
        better_text=better_text,
        better_image=better_image,
        candidates=len(hearing.candidates),
        wrong_statistic=hearing.wrong_statistic(),
        wrong_image=hearing.wrong.image,
        words=None if word_witness is None else judge_words(word_witness, rows, hearing.wrong, seed=seed),
    )
