"""The similarity of the neighbours of two words, counted text by text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import sqrt


def similarity(texts: Sequence[Sequence[int]], first: int, second: int) -> float:
    """The product over both sides of the sum of √(P(x next to first) · P(x next to second))."""
    product = 1.0
    for step in (-1, 1):
        seen = []
        for word in (first, second):
            neighbors = Counter(
                text[k + step]
                for text in texts
                for k in range(len(text))
                if text[k] == word and 0 <= k + step < len(text)
            )
            total = sum(neighbors.values())
            seen.append({other: count / total for other, count in neighbors.items()})
        product *= sum(sqrt(share * seen[1].get(other, 0.0)) for other, share in seen[0].items())
    return product
