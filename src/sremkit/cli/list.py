"""List what is registered: methods, backbones, data formats, recipes.

srem list
srem list recipes
"""

from __future__ import annotations

import argparse

HELP = "what there is: methods, backbones, formats, recipes"
KINDS = ("methods", "backbones", "formats", "recipes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only this kind")


def run(args: argparse.Namespace) -> None:
    for kind in KINDS if args.kind is None else (args.kind,):
        entries = _entries(kind)
        print(f"{kind}:")
        width = max((len(name) for name in entries), default=0)
        for name, description in entries.items():
            print(f"  {name:<{width}}  {description}")


def _entries(kind: str) -> dict[str, str]:
    """Name and one-line description of everything of a kind."""
    from sremkit.config.recipes import recipe_headlines
    from sremkit.data.formats import FORMATS
    from sremkit.methods import METHODS
    from sremkit.models import BACKBONES

    if kind == "recipes":
        return recipe_headlines()
    registry = {"methods": METHODS, "backbones": BACKBONES, "formats": FORMATS}[kind]
    return {name: registry.describe(name) for name in registry}  # type: ignore[attr-defined]
