"""The whole objective, written from the paper with loops."""

from __future__ import annotations

from oracles import complementary as cl
from oracles.filtration import Mask, Matrix, energy, energy_bound, select_clean, transpose
from oracles.weighting import sensitivity, weighted_ranking


def total(
    logits: Matrix,
    *,
    margin: float = 0.2,
    threshold: float = 0.0,
    clean_margin: float = -4.0,
    noisy_margin: float = 0.0,
    sharpness: float = 1.0,
    offset: float = 0.5,
    energy_weight: float = 0.01,
    complementary_weight: float = 1.0,
    reading: str = "normalized",
    filtration: bool = True,
    weighting: bool = True,
    complementary: bool = True,
    rectification: bool = True,
    warmup: bool = False,
    valid: Mask = None,
) -> dict[str, float]:
    """The parts by name, and `total`."""
    size = len(logits)
    views = {"i2t": (logits, valid), "t2i": (transpose(logits), None if valid is None else transpose(valid))}
    clean = {way: select_clean(F, threshold, mask) if filtration else [True] * size for way, (F, mask) in views.items()}
    weight = {way: sensitivity(F, margin, mask) if weighting else [1.0] * size for way, (F, mask) in views.items()}
    other = {"i2t": "t2i", "t2i": "i2t"}
    loss_of = {"normalized": cl.normalized, "printed": cl.printed}[reading]
    parts = {}
    for way, (F, mask) in views.items():
        ranking = weighted_ranking(F, weight[other[way]], clean[way], margin, mask)
        bound = energy_bound(energy(F, mask), clean[way], clean_margin, noisy_margin)
        used = [False] * size if warmup else clean[way]
        steep = sharpness if rectification else 0.0
        parts[f"ranking_{way}"] = 0.0 if warmup else ranking
        parts[f"energy_{way}"] = bound if filtration and not warmup else 0.0
        parts[f"complementary_{way}"] = loss_of(F, used, steep, offset, mask) if complementary else 0.0
    both = {name: parts[f"{name}_i2t"] + parts[f"{name}_t2i"] for name in ("ranking", "energy", "complementary")}
    if warmup:
        return parts | {"total": both["complementary"]}
    weighted = 0.5 * both["ranking"] + energy_weight * both["energy"]
    return parts | {"total": weighted + complementary_weight * both["complementary"]}
