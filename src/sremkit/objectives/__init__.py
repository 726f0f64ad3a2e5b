"""The SREM objective, one file a term. Pure functions of tensors; torch is all they import."""

from sremkit.objectives.complementary import complementary
from sremkit.objectives.energy import energy, energy_bound
from sremkit.objectives.entropy import normalized_entropy
from sremkit.objectives.filtration import select_clean
from sremkit.objectives.ranking import weighted_ranking
from sremkit.objectives.sensitivity import sensitivity
from sremkit.objectives.srem import SREM
from sremkit.objectives.terms import Loss, Terms

__all__ = [
    "SREM",
    "Loss",
    "Terms",
    "complementary",
    "energy",
    "energy_bound",
    "normalized_entropy",
    "select_clean",
    "sensitivity",
    "weighted_ranking",
]
