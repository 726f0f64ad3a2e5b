"""P(match) of the captions of one image, by loops over all states, from the formula."""

from __future__ import annotations

from itertools import product
from math import exp, log


def joint_posterior(a: list[float], s: list[list[float]], pi: float, gamma: float) -> tuple[list[float], float]:
    """P(match) of each caption, and the probability that all captions are those of another image.

    Args:
        a: log-ratio of matched and mismatched pairs, for each caption.
        s: log-ratio of captions of one image and of two, for each pair of captions.
    """
    c = len(a)

    def resemblance(state: tuple[int, ...]) -> float:
        matched = [k for k in range(c) if state[k]]
        total = sum(s[k][m] for k in matched for m in matched if k < m)
        return 2 * total / len(matched) if matched else 0.0

    total, match = 0.0, [0.0] * c
    for state in product((0, 1), repeat=c):
        p = log(1 - gamma) + resemblance(state)
        for k in range(c):
            p += a[k] + log(1 - pi) if state[k] else log(pi)
        total += exp(p)
        for k in range(c):
            match[k] += state[k] * exp(p)
    whole = exp(log(gamma) + (1 - c**-0.8) * min(sum(a), 0.0) + resemblance((1,) * c))
    total += whole
    return [value / total for value in match], whole / total
