"""Train image-text retrieval on pairs that are partly wrong, and find the wrong ones.

The objective needs torch alone: `from sremkit import SREM; SREM()(logits).total.backward()`.
"""

import importlib
from typing import TYPE_CHECKING

from sremkit.threads import sleep_while_waiting
from sremkit.version import __version__

sleep_while_waiting()  # before torch is loaded

if TYPE_CHECKING:
    from sremkit.audit.audit import Audit
    from sremkit.methods.srem_plus_module import SREMPlus
    from sremkit.objectives import SREM, Terms, TiledSREM, WarmupMonitor

__all__ = ["SREM", "Audit", "SREMPlus", "Terms", "TiledSREM", "WarmupMonitor", "__version__"]

_MODULES = {
    "SREM": "sremkit.objectives",
    "Terms": "sremkit.objectives",
    "TiledSREM": "sremkit.objectives",
    "WarmupMonitor": "sremkit.objectives",
    "SREMPlus": "sremkit.methods.srem_plus_module",
    "Audit": "sremkit.audit.audit",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use: the objective does not bring the data layer along, nor the help torch."""
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'sremkit' has no attribute '{name}'")
