"""The command `srem`: finds the command's file, runs it, and turns user errors into sentences."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import warnings
from collections.abc import Sequence

from sremkit.cli.parser import Parser
from sremkit.cli.requirements import check_packages
from sremkit.config.aliases import rename_options
from sremkit.errors import UserError, UserNotice
from sremkit.version import __version__

# In the order a newcomer meets them. Each is a file of this package with `HELP`, `add_arguments` and `run`.
COMMANDS = ("demo", "audit", "review", "score", "export", "train", "eval", "index", "search", "serve",
            "compare", "export-model", "features", "bench", "noise", "data", "list", "describe", "doctor",
            "completion")  # fmt: skip

# What a path that the user named may do to us; other errors of the system are ours to explain.
FILE_TROUBLE = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EROFS,
                errno.ENOSPC)  # fmt: skip

DESCRIPTION = """\
Train image-text retrieval on pairs that are partly wrong, and find the wrong ones.

srem demo
srem audit pairs.csv -o audits/mine
srem train scenes-srem
"""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="srem", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"sremkit {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name in COMMANDS:
        module = importlib.import_module(f"sremkit.cli.{name.replace('-', '_')}")
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    warnings.formatwarning = _as_sentence
    parser = build_parser()
    args = parser.parse_args(rename_options(sys.argv[1:] if argv is None else argv))
    if args.command is None:
        parser.print_help()
        return 0
    try:
        check_packages(args)
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


def _as_sentence(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A notice for the user as its sentence; other warnings with their place in the code."""
    if issubclass(category, UserNotice):
        return f"srem: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


if __name__ == "__main__":
    sys.exit(main())
