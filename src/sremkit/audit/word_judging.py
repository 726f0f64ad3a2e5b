"""Judging the words of one fold: of the given pairs, of surely wrong pairs, and of texts with one word exchanged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from sremkit.audit.surely_wrong import WrongPairs
from sremkit.audit.word_edits import edit_words
from sremkit.audit.word_witness import WordWitness


@dataclass(frozen=True, eq=False)
class JudgedWords:
    """What a word witness, who has not seen these pictures, says; see `Spoken`."""

    fit: np.ndarray  # (f,) of the given pairs, in the order of the fold's rows
    worst: np.ndarray  # (f,)
    wrong_fit: np.ndarray  # (w,) of the surely wrong pairs
    edited_place: np.ndarray  # (e,) which of the fold's pairs had a word exchanged
    edited_fit: np.ndarray  # (e,) and how it fared then
    edited_worst: np.ndarray  # (e,)


def judge_words(witness: WordWitness, rows: np.ndarray, wrong: WrongPairs, *, seed: int) -> JudgedWords:
    """Hear the witness about the pairs `rows`.

    A second heap that is known to be wrong is made of them: texts with one word exchanged, at the pictures
    that they came with. They stand for captions that are wrong in one word, as shuffled texts do for those that are
    wrong altogether.
    """
    slots, image_of_text = witness.view.slots, witness.view.image_of_text
    given = witness.hear(image_of_text[rows], slots.numbers[torch.from_numpy(rows)])
    shuffled = witness.hear(wrong.image, slots.numbers[torch.from_numpy(wrong.text)])
    edited_rows, edited_numbers = edit_words(witness, rows, seed=seed)
    edited = witness.hear(image_of_text[edited_rows], edited_numbers)
    place_of_row = np.zeros(len(image_of_text), dtype=np.int64)
    place_of_row[rows] = np.arange(len(rows))
    return JudgedWords(
        given.fit, given.worst, shuffled.fit, place_of_row[edited_rows], edited.fit, edited.worst
    )
