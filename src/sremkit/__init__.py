"""Train image-text retrieval on pairs that are partly wrong, and find the wrong ones.

The objective needs torch alone: `from sremkit import SREM; SREM()(logits).total.backward()`.
"""

from typing import TYPE_CHECKING

from sremkit.objectives import SREM, Terms
from sremkit.version import __version__

if TYPE_CHECKING:
    from sremkit.audit.audit import Audit

__all__ = ["SREM", "Audit", "Terms", "__version__"]


def __getattr__(name: str) -> object:
    """`Audit` when it is asked for: importing the objective must not bring the data layer along."""
    if name == "Audit":
        from sremkit.audit.audit import Audit

        return Audit
    raise AttributeError(f"module 'sremkit' has no attribute '{name}'")
