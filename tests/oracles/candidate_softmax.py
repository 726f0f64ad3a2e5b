"""A pair among its candidates, in slow loops: log-probability, energy and rank in both directions."""

from __future__ import annotations

import math


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def score(
    images: list[list[float]],
    texts: list[list[float]],
    image_of_text: list[int],
    candidates: list[int],
    image: int,
    text: int,
    masked: int = -1,
) -> dict[str, float]:
    """Candidates of the same image are left out; so are the text itself, and a masked image for the text."""
    own = dot(images[image], texts[text])
    over_texts = [dot(images[image], texts[c]) for c in candidates if image_of_text[c] != image and c != text]
    over_images = [
        dot(images[image_of_text[c]], texts[text])
        for c in candidates
        if image_of_text[c] != image and image_of_text[c] != masked
    ]
    result = {"statistic": 0.0}
    for name, others in (("i2t", over_texts), ("t2i", over_images)):
        log_sum = math.log(math.exp(own) + sum(math.exp(o) for o in others))
        result["statistic"] += own - log_sum
        result[f"energy_{name}"] = -log_sum
        result[f"rank_{name}"] = 1 + sum(o >= own for o in others)
    return result
