"""Encoders and similarities. A `Matcher` turns a batch of pairs into a matrix of logits."""

from __future__ import annotations

import inspect
from typing import Any

from sremkit.errors import UnknownNameError
from sremkit.models.matcher import Encoded, Matcher
from sremkit.registry import Registry

BACKBONES: Registry[type[Matcher]] = Registry("backbone", package="sremkit.models")


def build_matcher(name: str, **options: Any) -> Matcher:
    """Build a backbone by its name: `build_matcher("sgr", vocab_size=8481, image_dim=2048)`.

    The result carries `name` and `options`: `build_matcher(m.name, **m.options)` makes the same model again.
    """
    backbone = BACKBONES[name]
    known = inspect.signature(backbone).parameters
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UnknownNameError(
            f"the backbone '{name}' has no option {', '.join(unknown)}; it takes {', '.join(known)}"
        )
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise UnknownNameError(
            f"the backbone '{name}' needs the option {', '.join(missing)}; give it a value"
        )
    matcher = backbone(**options)
    matcher.name, matcher.options = name, {**options, **matcher.resolved_options}
    return matcher


__all__ = ["BACKBONES", "Encoded", "Matcher", "build_matcher"]
