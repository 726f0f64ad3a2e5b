"""The command `srem`: finds the command's file, runs it, and turns user errors into sentences."""

from __future__ import annotations

import argparse
import errno
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

# What a path that the user named may do to us; other errors of the system are ours to explain.
FILE_TROUBLE = (
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.EROFS,
    errno.ENOSPC,
)

DESCRIPTION = """\
Train image-text retrieval on pairs that are partly wrong, and find the wrong ones.

Start with:  srem demo
"""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions and states every default."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default in ((), []):
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
        return problem.exit_code
    except KeyboardInterrupt:
        print("srem: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as problem:
        if problem.errno not in FILE_TROUBLE or problem.filename is None:
            raise
        print(f"srem: {problem.filename}: {problem.strerror}; name another file or folder", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
