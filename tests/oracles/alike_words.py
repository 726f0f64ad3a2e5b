"""How alike the neighbours of two words are, counted text by text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt


def alike(texts: Sequence[Sequence[int]], first: int, second: int) -> float:
    """The product over both sides of the sum of √(P(x beside first) · P(x beside second))."""
    product = 1.0
    for step in (-1, 1):
        seen = []
        for word in (first, second):
            beside = Counter(
                text[k + step]
                for text in texts
                for k in range(len(text))
                if text[k] == word and 0 <= k + step < len(text)
            )
            total = sum(beside.values())
            seen.append({other: count / total for other, count in beside.items()})
        product *= sum(sqrt(share * seen[1].get(other, 0.0)) for other, share in seen[0].items())
    return product
