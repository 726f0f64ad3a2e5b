"""Captions wrong in one word, made as people make them: with the word that would stand there at another picture.

    P(place t, word v) ∝ P_t(v | the other words, another picture),   v an alternative of the word at t, not itself

A mistake happens where a sentence leaves something open, and still makes a sentence. Where the other words leave but
one choice, as "background" after "on a white", hardly anything is exchanged. Any word exchanged by any alternative
would give texts that look worse than whatever people write wrongly, and the line between right and wrong would be
drawn among those.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.word_witness import AT_ONCE, SURE, WordWitness, among_alternatives


@torch.no_grad()
def edit_words(witness: WordWitness, rows: np.ndarray, *, seed: int) -> tuple[np.ndarray, Tensor]:
    """Exchange one word of each text.

    Returns:
        the rows (e,) of the texts in which something is open, and the new texts (e, w).
    """
    numbers, image_of_text = witness.view.slots.numbers, witness.view.image_of_text
    other_image = image_of_text[np.random.default_rng(seed).permutation(rows)]  # (f,)
    differs = other_image != image_of_text[rows]
    rows, other_image = rows[differs], other_image[differs]
    generator = torch.Generator().manual_seed(seed)
    kept_rows, texts = [np.zeros(0, dtype=np.int64)], [numbers[:0]]
    for start in range(0, len(rows), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        text = numbers[torch.from_numpy(rows[some])]  # (b, w), a copy
        is_open = _exchange(witness, other_image[some], text, generator)
        kept_rows.append(rows[some][is_open.numpy()])
        texts.append(text[is_open])
    return np.concatenate(kept_rows), torch.cat(texts)


def _exchange(witness: WordWitness, images: np.ndarray, text: Tensor, generator: torch.Generator) -> Tensor:
    """Exchange a word of each text in place; returns in which of them there was one to exchange, (b,)."""
    log_own, others, is_slot = among_alternatives(witness.guesser, witness.view, images, text)
    openness = -torch.expm1(log_own.double()) * is_slot  # (b, w): 1 - P of the word that stands there
    is_open = openness.sum(dim=1) > SURE
    at = torch.multinomial(openness[is_open].clamp_min(0), 1, generator=generator)  # (e, 1)
    chances = others[is_open, at.squeeze(1)].softmax(dim=1)  # (e, v)
    word = torch.multinomial(chances, 1, generator=generator)  # (e, 1)
    text[is_open] = text[is_open].scatter(1, at, word)
    return is_open
