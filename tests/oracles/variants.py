"""SREM with one thing done otherwise, written with loops from the words that describe each change."""

from __future__ import annotations

import math

from oracles import complementary as cl
from oracles.filtration import Mask, Matrix, counts, energy, energy_bound, transpose
from oracles.weighting import sensitivity, weighted_ranking


def origin(kind: str, energies: list[float], candidates: list[int]) -> list[float]:
    """What each row's threshold is counted from."""
    size = len(energies)
    if kind == "equal-logits":
        return [-math.log(many) for many in candidates]
    if kind == "median":
        return [sorted(energies)[(size - 1) // 2]] * size  # of two in the middle the lower
    if kind == "mean":
        return [math.fsum(energies) / size] * size
    return [0.0] * size


def clean_rows(logits: Matrix, valid: Mask, kind: str, threshold: float) -> list[bool]:
    size = len(logits)
    candidates = [sum(counts(valid, i, j) for j in range(size)) for i in range(size)]
    energies = energy(logits, valid)
    clean = []
    for i, start in enumerate(origin(kind, energies, candidates)):
        is_best = all(logits[i][i] > logits[i][j] for j in range(size) if j != i and counts(valid, i, j))
        clean.append(is_best and energies[i] < start + threshold)
    return clean


def joint_clean(clean: dict[str, list[bool]], rule: str) -> dict[str, list[bool]]:
    joined: dict[str, list[bool]] = {"i2t": [], "t2i": []}
    for image_says, text_says in zip(clean["i2t"], clean["t2i"], strict=True):
        said = {
            "own": (image_says, text_says),
            "both": (image_says and text_says,) * 2,
            "either": (image_says or text_says,) * 2,
            "i2t": (image_says,) * 2,
        }[rule]
        joined["i2t"].append(said[0])
        joined["t2i"].append(said[1])
    return joined


def total(
    logits: Matrix,
    *,
    threshold_from: str = "zero",
    relative_margins: bool = False,
    clean_set: str = "own",
    weights: str = "swapped",
    threshold: float = 0.0,
    clean_margin: float = -4.0,
    noisy_margin: float = 0.0,
    margin: float = 0.2,
    energy_weight: float = 0.01,
    complementary_weight: float = 1.0,
    sharpness: float = 1.0,
    offset: float = 0.5,
    valid: Mask = None,
) -> float:
    """The loss after the warm-up."""
    views = {"i2t": (logits, valid), "t2i": (transpose(logits), None if valid is None else transpose(valid))}
    clean = joint_clean({w: clean_rows(*view, threshold_from, threshold) for w, view in views.items()}, clean_set)
    weight = {way: sensitivity(F, margin, mask) for way, (F, mask) in views.items()}
    other = {"i2t": "t2i", "t2i": "i2t"}
    whole = 0.0
    for way, (F, mask) in views.items():
        by = other[way] if weights == "swapped" else way
        energies = energy(F, mask)
        start = math.fsum(energies) / len(energies) if relative_margins else 0.0
        bound = energy_bound([e - start for e in energies], clean[way], clean_margin, noisy_margin)
        whole += 0.5 * weighted_ranking(F, weight[by], clean[way], margin, mask)
        whole += energy_weight * bound
        whole += complementary_weight * cl.normalized(F, clean[way], sharpness, offset, mask)
    return whole
