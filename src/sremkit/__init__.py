"""Train image-text retrieval on pairs that are partly wrong, and find the wrong ones.

The objective needs torch alone: `from sremkit import SREM; SREM()(logits).total.backward()`.
"""

from sremkit.objectives import SREM, Terms
from sremkit.version import __version__

__all__ = ["SREM", "Terms", "__version__"]
