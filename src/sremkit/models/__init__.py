"""Backbones: a `Matcher` encodes images and texts and turns a batch of pairs into a matrix of logits."""

from __future__ import annotations

import inspect
from typing import Any

from sremkit.config.aliases import MODEL_NAMES
from sremkit.errors import UnknownNameError
from sremkit.models.matcher import Encoded, Matcher
from sremkit.registry import Registry

BACKBONES: Registry[type[Matcher]] = Registry(
    "backbone",
    packages=("sremkit.models.backbones",),
    group="sremkit.backbones",
    accepts=lambda component: issubclass(component, Matcher),
)
#: Models made of a backbone, which methods build for themselves.
WRAPPERS: Registry[type[Matcher]] = Registry("model wrapper", packages=("sremkit.models.wrappers",))


def build_matcher(name: str, **options: Any) -> Matcher:
    """Build a backbone by its name: `build_matcher("sgr", vocab_size=8481, image_dim=2048)`.

    The result carries `name` and `options`: `build_matcher(m.name, **m.options)` builds the same model again.
    """
    name = MODEL_NAMES.get(name, name)
    backbone = WRAPPERS[name] if name in WRAPPERS else BACKBONES[name]
    known = inspect.signature(backbone).parameters
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise UnknownNameError(f"the backbone '{name}' has no option {', '.join(unknown)}; it takes {', '.join(known)}")
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise UnknownNameError(f"the backbone '{name}' needs the option {', '.join(missing)}; give it a value")
    matcher = backbone(**options)
    matcher.name, matcher.options = name, {**options, **matcher.resolved_options}
    return matcher


__all__ = ["BACKBONES", "WRAPPERS", "Encoded", "Matcher", "build_matcher"]
