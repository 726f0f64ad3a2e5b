"""Kinds of wrong captions for the bench of the audit, from easy to hard.

    random       captions of some images are permuted
    shared-word  two images exchange captions that share a content word
    near         two images exchange captions whose vectors are near
    absent       a caption of an image that is not in the collection
    one-word     one word is exchanged for another of its class, such as a colour for a colour

Each function returns, for pairs that are all right, another caption for some of them. Exchanged captions stay in the
collection once, so that no kind can be found by counting captions. Pairs for which there is no such caption stay right:
the truth is what was changed, and its rate can be below the requested one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sremkit.data.vocabulary import tokenize
from sremkit.errors import UserError

NEIGHBORS = 20  # nearest captions among which a partner is sought
CHUNK_ROWS = 1024
FUNCTION_WORDS = frozenset(
    word
    for line in (
        "a an the and or but of in on at to from by with without for into onto over under near next is are",
        "was were be being been has have had do does as it its it's his her hers their they them he she who",
        "which that this these those there while up down out off through around along across behind between",
        "against toward towards some two three four other another one very",
    )
    for word in line.split()
)
#: Words that can stand for each other in a caption and differ in what they show.
WORD_CLASSES = tuple(
    frozenset(line.split())
    for line in (
        "red blue green yellow black white brown orange pink purple gray grey tan",
        "man woman boy girl child baby toddler lady guy",
        "men women boys girls children kids people",
        "dog cat horse bird cow sheep puppy",
        "dogs cats horses birds cows puppies",
        "one two three four five six several",
        "shirt jacket coat dress hat sweater suit t-shirt uniform",
        "snow sand grass water mud dirt",
        "beach street field forest park mountain river lake pool city road",
        "ball frisbee stick toy rope bone",
        "bike bicycle skateboard surfboard snowboard motorcycle scooter car truck boat",
        "running walking jumping sitting standing swimming climbing sleeping riding lying",
        "runs walks jumps sits stands swims climbs sleeps rides lies",
        "left right",
        "above below",
        "circle square triangle star cross diamond ring heart",
        "large small big little tall short young old",
    )
)


def permute_captions(rows: np.ndarray, image_of_text: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The caption of each pair, (m,): those of `rows` are permuted among them."""
    caption = np.arange(len(image_of_text))
    caption[rows] = rng.permutation(rows)
    return caption


def exchange_by_word(
    rows: np.ndarray, image_of_text: np.ndarray, texts: Sequence[str], rng: np.random.Generator
) -> np.ndarray:
    """The caption of each pair, (m,): pairs among `rows` that share a content word exchange captions."""
    words = {row: sorted(content_words(texts[row])) for row in rows.tolist()}
    rows_of_word: dict[str, list[int]] = {}
    for row in rng.permutation(rows).tolist():
        for word in words[row]:
            rows_of_word.setdefault(word, []).append(row)
    caption = np.arange(len(image_of_text))
    free = set(rows.tolist())
    for row in rng.permutation(rows).tolist():
        if row not in free:
            continue
        for word in rng.permutation(words[row]).tolist():
            others = rows_of_word[word] = [k for k in rows_of_word[word] if k in free]
            partner = next((k for k in others if image_of_text[k] != image_of_text[row]), None)
            if partner is not None:
                caption[row], caption[partner] = partner, row
                free -= {row, partner}
                break
    return caption


def exchange_by_vector(rows: np.ndarray, image_of_text: np.ndarray, text_emb: np.ndarray) -> np.ndarray:
    """The caption of each pair, (m,): the nearest captions among `rows` are exchanged first."""
    caption = np.arange(len(image_of_text))
    if len(rows) < 2:
        return caption
    unit = text_emb[rows] / np.maximum(np.linalg.norm(text_emb[rows], axis=1, keepdims=True), 1e-12)
    image = image_of_text[rows]
    found: list[tuple[float, int, int]] = []
    count = min(NEIGHBORS, len(rows) - 1)
    for start in range(0, len(rows), CHUNK_ROWS):
        cosine = unit[start : start + CHUNK_ROWS] @ unit.T
        cosine[image[start : start + CHUNK_ROWS, None] == image[None, :]] = -np.inf  # itself too
        nearest = np.argpartition(-cosine, count - 1, axis=1)[:, :count]
        for k, others in enumerate(nearest):
            found += [(float(cosine[k, j]), start + k, int(j)) for j in others if np.isfinite(cosine[k, j])]
    free = np.ones(len(rows), dtype=bool)
    for _, first, second in sorted(found, reverse=True):
        if free[first] and free[second]:
            caption[rows[first]], caption[rows[second]] = rows[second], rows[first]
            free[[first, second]] = False
    return caption


def exchange_word(text: str, rng: np.random.Generator) -> str | None:
    """The text with one word of `WORD_CLASSES` exchanged for another of its class; None where it has no such word."""
    words = text.split()
    places = [(k, group) for k, word in enumerate(words) for group in WORD_CLASSES if _plain(word) in group]
    if not places:
        return None
    place, group = places[int(rng.integers(len(places)))]
    others = sorted(group - {_plain(word) for word in words})
    if not others:
        return None
    old = _plain(words[place])
    new = others[int(rng.integers(len(others)))]
    words[place] = words[place].lower().replace(old, new, 1)
    return " ".join(words)


def content_words(text: str) -> set[str]:
    """The words of a text that are no function words."""
    return {word for word in tokenize(text) if word not in FUNCTION_WORDS and len(word) > 2}


def choose_rows(num_pairs: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Distinct rows, a fraction `rate` of all."""
    if not 0 <= rate <= 1:
        raise UserError(f"the noise rate is a fraction between 0 and 1, got {rate}")
    return rng.permutation(num_pairs)[: round(rate * num_pairs)]


def _plain(word: str) -> str:
    return word.strip(".,;:!?\"'()").lower()


#: Kinds whose captions come from the collection itself: rows, image of each text, texts, text vectors, generator.
EXCHANGES: dict[str, Callable[[np.ndarray, np.ndarray, Sequence[str], np.ndarray, np.random.Generator], np.ndarray]] = {
    "random": lambda rows, image, texts, emb, rng: permute_captions(rows, image, rng),
    "shared-word": lambda rows, image, texts, emb, rng: exchange_by_word(rows, image, texts, rng),
    "near": lambda rows, image, texts, emb, rng: exchange_by_vector(rows, image, emb),
}
KINDS = (*EXCHANGES, "absent", "one-word")
