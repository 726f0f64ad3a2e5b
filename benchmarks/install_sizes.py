"""Sizes of what `pip install sremkit` and each of its extras bring: packages and MB on disk.

python -m benchmarks.install_sizes

Sums the files of the packages that are installed here, with everything that they require. The build of torch decides
most of it: a CPU build is shown as it is, a CUDA build brings several gigabytes of NVIDIA packages.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from benchmarks.commands import make_parser, run_command

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")


def packages_of(requirements: list[str]) -> set[str]:
    """Names of the installed packages that these requirements bring, with all that they require."""
    found: set[tuple[str, str]] = set()  # package and one of its extras, "" for none
    pending = list(requirements)
    while pending:
        match = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", pending.pop())
        assert match is not None
        name = match[1].lower().replace("_", "-")
        for extra in ["", *(match[2] or "").split(",")]:
            if (name, extra) in found:
                continue
            found.add((name, extra))
            pending += _required(name, extra)
    return {name for name, _ in found if name != "sremkit" and _is_installed(name)}


def size_mb(package: str) -> float:
    """MB of a package's files on disk."""
    files = [Path(str(file.locate())) for file in distribution(package).files or ()]
    return sum(file.stat().st_size for file in files if file.exists()) / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(make_parser("install_sizes", __doc__), print_sizes, arguments)


def print_sizes(args: argparse.Namespace) -> None:
    core = packages_of(PROJECT["dependencies"])
    rows = {"sremkit": core}
    for extra in PROJECT["optional-dependencies"]:
        rows[f"sremkit[{extra}]"] = core | packages_of([f"sremkit[{extra}]"])
    print(f"torch {distribution('torch').version}: {size_mb('torch'):,.0f} MB")
    for name, packages in rows.items():
        without_torch = sum(size_mb(package) for package in packages if package != "torch")
        print(f"{name:<20} {len(packages):>3} packages {without_torch:>7,.0f} MB without torch")


def _required(name: str, extra: str) -> list[str]:
    if name == "sremkit":
        return list(PROJECT["optional-dependencies"].get(extra, ()))
    if not _is_installed(name):
        return []
    found = []
    for requirement in distribution(name).requires or ():
        wanted = EXTRA.search(requirement)
        if (wanted[1] if wanted else "") == extra:
            found.append(requirement)
    return found


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
