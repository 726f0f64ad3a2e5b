"""A pair among its competitors, in slow loops: log-probability, energy and rank in both directions."""

from __future__ import annotations

import math


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def standing(
    images: list[list[float]],
    texts: list[list[float]],
    image_of_text: list[int],
    candidates: list[int],
    image: int,
    text: int,
    hidden: int = -1,
) -> dict[str, float]:
    """Candidates of the same picture stay out; so does the text itself, and a hidden picture for the text."""
    given = dot(images[image], texts[text])
    over_texts = [dot(images[image], texts[c]) for c in candidates if image_of_text[c] != image and c != text]
    over_images = [
        dot(images[image_of_text[c]], texts[text])
        for c in candidates
        if image_of_text[c] != image and image_of_text[c] != hidden
    ]
    result = {"statistic": 0.0}
    for name, others in (("i2t", over_texts), ("t2i", over_images)):
        total = math.log(math.exp(given) + sum(math.exp(o) for o in others))
        result["statistic"] += given - total
        result[f"energy_{name}"] = -total
        result[f"rank_{name}"] = 1 + sum(o >= given for o in others)
    return result
