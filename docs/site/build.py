"""Build the documentation: python docs/site/build.py

The pages are assembled in build/docs, in the layout of the repository, so that links between files work here as they
do there. Pages of the reference are generated from the code (generate.py). A broken link or anchor is an error.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

SITE = Path(__file__).parent
REPOSITORY = SITE.parents[1]
STAGING, OUT = REPOSITORY / "build" / "docs", REPOSITORY / "build" / "site"
sys.path[:0] = [str(SITE), str(REPOSITORY / "src")]

import generate  # noqa: E402
from notebook_pages import notebook_page  # noqa: E402

FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE",
         "docs/**/*.md", "docs/images/*", "docs/**/*.ipynb",
         "docs/site/extra.css", "results/*.md", "results/*.csv", "results/*.tex", "examples/*",
         "benchmarks/README.md")  # fmt: skip
FENCE_ATTRIBUTES = re.compile(r"^```(\w+) skip=.*$", re.M)  # for the tests of the code blocks
SETUP = re.compile(r"<!-- (setup\n|continues ).*?-->\n*", re.S)
WIDE = ("docs/equations.md", "results/")  # tables of many columns, shown in place of the list of contents
HISTORY = ("docs/lab.md", "docs/decisions.md", "docs/deviations.md", "CHANGELOG.md", "results/")  # last in searches
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")


def main() -> None:
    build_site(OUT)
    print(f"{OUT.relative_to(REPOSITORY)}/index.html")


def build_site(out: Path) -> None:
    """Assemble the pages, generate the reference and write the site into a folder."""
    import os

    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    assemble()
    logging.getLogger("mkdocs").addHandler(logging.StreamHandler(sys.stderr))
    config = load_config(str(SITE / "mkdocs.yml"), docs_dir=str(STAGING), site_dir=str(out), strict=True, nav=nav())
    build(config)


def assemble() -> None:
    """Copy the pages into build/docs, and write those that are generated."""
    shutil.rmtree(STAGING, ignore_errors=True)
    for pattern in FILES:
        for source in sorted(REPOSITORY.glob(pattern)):
            target = STAGING / source.relative_to(REPOSITORY)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".md":
                target.write_text(page_text(source), encoding="utf-8")
            elif source.suffix == ".ipynb":
                target.with_suffix(".md").write_text(notebook_page(source), encoding="utf-8")
            else:
                shutil.copyfile(source, target)
    for path, text in generate.pages(REPOSITORY / "docs").items():
        target = STAGING / "docs" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def page_text(source: Path) -> str:
    """A page without what only the tests read, and with links to folders made links to their pages."""
    text = SETUP.sub("", FENCE_ATTRIBUTES.sub(r"```\1", source.read_text(encoding="utf-8")))

    def to_page(match: re.Match[str]) -> str:
        target = source.parent / match[1]
        if target.is_dir():
            return f"]({match[1].rstrip('/')}/README.md{match[2] or ''})"
        return f"]({match[1].removesuffix('.ipynb')}.md)" if match[1].endswith(".ipynb") else match[0]

    return front_matter(source.relative_to(REPOSITORY).as_posix()) + LINK.sub(to_page, text)


def front_matter(path: str) -> str:
    """How the theme shows a page, and where a search finds it."""
    lines = []
    if path.startswith(WIDE):
        is_listed = path.startswith("docs/") or path.endswith("README.md")
        lines.append("hide: [toc]" if is_listed else "hide: [toc, navigation]")
    if path.startswith(HISTORY):
        lines.append("search: {boost: 0.2}")
    return "".join(f"{line}\n" for line in ("---", *lines, "---", "")) if lines else ""


def nav() -> list[Any]:
    """The navigation of nav.yml, with a page for each method."""
    entries = yaml.safe_load((SITE / "nav.yml").read_text(encoding="utf-8"))
    named = set(re.findall(r"[\w/.-]+\.md", str(entries)))
    methods = sorted(path.relative_to(STAGING).as_posix() for path in (STAGING / "docs" / "methods").glob("*.md"))
    for entry in entries:
        if "Methods" in entry:
            entry["Methods"] += [path for path in methods if path not in named]
    return entries


if __name__ == "__main__":
    main()
