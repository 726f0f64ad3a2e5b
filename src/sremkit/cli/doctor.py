"""Show versions, devices and optional packages, and what is missing for which command.

srem doctor
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version

from sremkit.cli.requirements import NEEDS, always, missing_packages
from sremkit.extras import is_installed
from sremkit.version import __version__

HELP = "versions, devices, optional packages, and what is missing"
DEVELOPMENT = ("dev", "docs", "integrations")  # extras that no command needs
REQUIREMENT = re.compile(r"([\w.-]+)[^;]*;.*extra == ['\"]([\w-]+)['\"]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> None:
    for title, lines in (
        ("versions", _versions()),
        ("devices", _devices()),
        ("optional packages", _optional_packages()),
        ("commands", _commands()),
    ):
        print(f"{title}:")
        width = max(len(name) for name in lines)
        for name, value in lines.items():
            print(f"  {name:<{width}}  {value}")


def _versions() -> dict[str, str]:
    core = ("torch", "numpy", "safetensors", "rich", "docstring-parser")
    return {
        "sremkit": __version__,
        "Python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        **{package: _version(package) for package in core},
    }


def _devices() -> dict[str, str]:
    import torch

    from sremkit.worker_processes import usable_cores

    found = {"cpu": f"{usable_cores()} cores; threads of torch: {torch.get_num_threads()}"}
    for k in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(k)
        found[f"cuda:{k}"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    if torch.backends.mps.is_available():
        found["mps"] = "Apple GPU"
    if not torch.cuda.is_available():
        found["cuda"] = "none" if torch.version.cuda else "none: this torch is a build without CUDA"
    return found


def _optional_packages() -> dict[str, str]:
    """Every package of the extras, with its version or the smallest extra that installs it."""
    extras: dict[str, list[str]] = {}
    for requirement in requires("sremkit") or ():
        match = REQUIREMENT.match(requirement)
        if match and match[1] != "sremkit" and match[2] not in DEVELOPMENT:
            extras.setdefault(match[2], []).append(match[1])
    found: dict[str, str] = {}
    for extra, packages in sorted(extras.items(), key=lambda entry: len(entry[1])):
        for package in packages:
            missing = f"missing: pip install 'sremkit[{extra}]'"
            found.setdefault(package, _version(package) if is_installed(package) else missing)
    return dict(sorted(found.items()))


def _commands() -> dict[str, str]:
    """For each command "ready", or what it lacks, always or for some arguments."""
    status = {}
    for command, needs in NEEDS.items():
        missing = missing_packages(list(needs))
        extras = sorted({need.extra for need in needs if missing_packages([need])})
        lacks_always = missing_packages([need for need in needs if need.when is always])
        words = "lacks" if lacks_always else "ready, but some arguments need"
        status[command] = (
            f"{words} {', '.join(missing)}: pip install 'sremkit[{','.join(extras)}]'" if missing else "ready"
        )
    return status


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "installed" if is_installed(package) else "missing"
