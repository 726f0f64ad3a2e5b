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

# Errors of the system that a path of the user's may cause; any other is a defect of ours and keeps its traceback.
FILE_TROUBLE = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG,
                errno.ELOOP)  # fmt: skip
# Errors of the machine, which also come without a path, and what to do.
MACHINE_TROUBLE = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space, or name a folder on another disk, and try again"
    ),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit, such as with `ulimit -n 1024`, and try again"),
    **dict.fromkeys((errno.EROFS, errno.EIO, errno.ESTALE), "check the disk, or name a folder on another one"),
}

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
        if (sentence := _sentence_of(problem)) is None:
            raise
        print(f"srem: {sentence}", file=sys.stderr)
        return 2


def _sentence_of(problem: OSError) -> str | None:
    """What an error of the system means for the user; None for an error that is ours."""
    place = "" if problem.filename is None else f"{problem.filename}: "
    if problem.errno in MACHINE_TROUBLE:
        return f"{place}{os.strerror(problem.errno)}; {MACHINE_TROUBLE[problem.errno]}"
    if problem.errno in FILE_TROUBLE and place:
        return f"{place}{os.strerror(problem.errno)}; name another file or folder"
    return None


def _as_sentence(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A notice for the user as its sentence; other warnings with their place in the code."""
    if issubclass(category, UserNotice):
        return f"srem: {message}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


if __name__ == "__main__":
    sys.exit(main())
