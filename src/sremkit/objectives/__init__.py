"""Objectives as functions of a matrix of logits, one file a loss. They import torch alone; start with `srem.py`."""

from sremkit.objectives.complementary import complementary
from sremkit.objectives.fast.tiled import TiledSREM
from sremkit.objectives.filtration import energy, energy_bound, select_clean
from sremkit.objectives.srem import SREM, srem_reference
from sremkit.objectives.terms import Loss, PairReport, Terms
from sremkit.objectives.warmup import WarmupMonitor
from sremkit.objectives.weighting import normalized_entropy, sensitivity, weighted_ranking

__all__ = [
    "SREM",
    "Loss",
    "PairReport",
    "Terms",
    "TiledSREM",
    "WarmupMonitor",
    "complementary",
    "energy",
    "energy_bound",
    "normalized_entropy",
    "select_clean",
    "sensitivity",
    "srem_reference",
    "weighted_ranking",
]
