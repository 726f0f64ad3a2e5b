"""The command `srem`: finds the command's file, runs it, and turns user errors into sentences."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from sremkit.errors import UserError
from sremkit.version import __version__

# In the order a newcomer meets them. Each is a file of this package with `HELP`, `add_arguments` and `run`.
COMMANDS = (
    "demo",
    "audit",
    "export",
    "train",
    "eval",
    "compare",
    "features",
    "bench",
    "noise",
    "list",
)

DESCRIPTION = """\
Train image-text retrieval on pairs that are partly wrong, and find the wrong ones.

Start with:  srem demo
"""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions and states every default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default in (None, False, ()):
            return action.help
        return super()._get_help_string(action)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="srem", description=DESCRIPTION, formatter_class=HelpFormatter)
    parser.add_argument("--version", action="version", version=f"sremkit {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in COMMANDS:
        module = importlib.import_module(f"sremkit.cli.{name}")
        command = commands.add_parser(
            name, help=module.HELP, description=module.__doc__, formatter_class=HelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return args.run(args) or 0
    except UserError as problem:
        print(f"srem: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("srem: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


if __name__ == "__main__":
    sys.exit(main())
