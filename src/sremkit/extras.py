"""Optional packages, imported where they are used."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from sremkit.errors import MissingExtraError

#: Packages whose module has another name; for the others "-" becomes "_".
MODULES = {"pillow": "PIL", "faiss-cpu": "faiss", "mlflow-skinny": "mlflow", "protobuf": "google.protobuf"}


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or say which extra of sremkit brings it.

    Args:
        purpose: completes the sentence "... is needed to <purpose>".
    """
    try:
        return importlib.import_module(module)
    except ImportError as cause:
        if getattr(cause, "name", None) not in (module, module.split(".")[0]):
            raise  # the package is there but broken: hiding that would mislead
        raise MissingExtraError(
            f"the package '{module.split('.')[0]}' is needed to {purpose}; "
            f"install it with: pip install 'sremkit[{extra}]'"
        ) from cause


def is_installed(package: str) -> bool:
    """Whether a package, by its name on PyPI, is there; it is not imported."""
    try:
        return importlib.util.find_spec(MODULES.get(package, package.replace("-", "_"))) is not None
    except ImportError:
        return False
