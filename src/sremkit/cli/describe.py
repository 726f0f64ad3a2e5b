"""Show every setting of a method, backbone, format, recipe or settings table, with default and meaning.

srem describe srem
srem describe sgr
srem describe training
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sremkit.config.options import Option

HELP = "the settings of a method, backbone, format or recipe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a name that `srem list` shows, or data, noise or training")


def run(args: argparse.Namespace) -> None:
    from sremkit.describe import describe

    for k, found in enumerate(describe(args.name)):
        print("\n" * (k > 0) + f"{found.name} ({found.kind}): {found.text}")
        for fact in found.facts:
            print(f"  {fact}")
        if found.options:
            print(f"\nsettings, with their defaults; change one with --set {found.prefix}KEY=VALUE:")
        if found.kind == "recipe":
            print(f"\nall of its settings: srem train {found.name} --print-config")
        for option in found.options:
            _print_option(option, found.prefix)


def _print_option(option: Option, prefix: str) -> None:
    from sremkit.config.options import REQUIRED
    from sremkit.config.recipes import to_toml

    if option.default is REQUIRED:
        default = "(required)"
    else:
        default = "(none)" if option.default is None else f"= {to_toml(option.default)}"
    print(f"\n  {prefix}{option.name} {default}    {option.type}")
    width = max(40, shutil.get_terminal_size().columns)
    print(textwrap.fill(option.meaning, width, initial_indent=" " * 6, subsequent_indent=" " * 6))
