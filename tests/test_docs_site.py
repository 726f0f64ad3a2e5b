"""The documentation builds without a warning, every link of the built pages leads somewhere, and nothing is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import sremkit
from reviewed_audits import browser
from sremkit.cli.main import build_parser
from sremkit.cli.parser import all_parsers
from sremkit.config.options import options_of
from sremkit.config.recipes import recipe_files
from sremkit.describe import SETTINGS
from sremkit.methods import METHODS
from sremkit.models import BACKBONES
from sremkit.objectives import __all__ as OBJECTIVES

REPOSITORY = Path(__file__).parents[1]
#: Methods of the package; other tests of the same process may have registered their own.
PACKAGED_METHODS = [name for name in METHODS if METHODS[name].__module__.startswith("sremkit.")]
pytestmark = [
    pytest.mark.alone,  # a site of 60 pages, built once
    pytest.mark.skipif(importlib.util.find_spec("mkdocstrings") is None, reason="the extra 'docs' is not installed"),
]


class Page(HTMLParser):
    """The links, the loaded files, the anchors and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        self.text = text
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        self.anchors |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif tag in ("img", "script") and "src" in values:
            self.loaded.add(values["src"])
        elif tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.add(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    out = tmp_path_factory.mktemp("site")
    code = f"import build; from pathlib import Path; build.build_site(Path({str(out)!r}))"
    paths = os.pathsep.join([str(REPOSITORY / "docs" / "site"), str(REPOSITORY / "src")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {file: Page(file.read_text(encoding="utf-8")) for file in out.rglob("*.html")}


def root(site: dict[Path, Page]) -> Path:
    return min(site, key=lambda file: len(file.parts)).parent


def text_of(site: dict[Path, Page], name: str) -> str:
    return site[root(site) / "docs" / name].text


def test_every_link_of_the_site_leads_to_a_page_and_an_anchor(site: dict[Path, Page]) -> None:
    broken = []
    for file, page in site.items():
        for link in page.links | page.loaded:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("data:") or file.name == "404.html":
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            known = site[target].anchors if target in site else set()
            if not target.exists() or (parts.fragment and target in site and unquote(parts.fragment) not in known):
                broken.append(f"{file.relative_to(root(site))}: {link}")
    assert broken == []


def test_the_pages_load_nothing_from_elsewhere(site: dict[Path, Page]) -> None:
    loaded = {link for page in site.values() for link in page.loaded if urlsplit(link).scheme in ("http", "https")}
    assert loaded == set()


def test_formulas_are_mathml_without_leftover_commands(site: dict[Path, Page]) -> None:
    formulas = [f for page in site.values() for f in re.findall(r"<math .*?</math>", page.text, re.S)]
    assert len(formulas) > 15
    assert [formula for formula in formulas if re.search(r">[^<]*\\", formula)] == []


def test_every_command_setting_method_backbone_and_recipe_has_its_place(site: dict[Path, Page]) -> None:
    cli = text_of(site, "reference/cli.html")
    assert all(f"<code>{parser.prog}</code>" in cli for parser in all_parsers(build_parser()))
    settings = text_of(site, "reference/settings.html")
    for table in SETTINGS.values():
        assert all(f"<code>{option.name} " in settings for option in options_of(table))
    for method in PACKAGED_METHODS:
        page = text_of(site, f"methods/{method}.html")
        assert all(f"<code>{option.name} " in page for option in options_of(METHODS[method]))
    assert all(f"<code>{name}</code>" in text_of(site, "reference/backbones.html") for name in BACKBONES)
    assert all(f"<code>{name}</code>" in text_of(site, "reference/recipes.html") for name in recipe_files())
    objectives = text_of(site, "reference/api/objectives.html")
    assert all(f'id="sremkit.objectives.{name}"' in objectives for name in OBJECTIVES)
    python = "".join(page.text for file, page in site.items() if file.parent.name == "api")
    public = [name for name in sremkit.__all__ if name != "__version__"]
    assert [name for name in public if not re.search(rf'id="sremkit\.[\w.]+\.{name}"', python)] == []


def test_the_navigation_names_every_page() -> None:
    named = (REPOSITORY / "docs" / "site" / "nav.yml").read_text(encoding="utf-8")
    written = {file.relative_to(REPOSITORY) for file in (REPOSITORY / "docs").rglob("*.md")}
    pages = [path for path in written if path.parent != Path("docs/methods")]  # those are added by name
    notebooks = [path.with_suffix(".md") for path in Path("docs/notebooks").glob("*.ipynb")]
    assert [page.as_posix() for page in [*pages, *notebooks] if f" {page.as_posix()}\n" not in named] == []


def test_every_method_has_a_written_page() -> None:
    assert [name for name in PACKAGED_METHODS if not (REPOSITORY / "docs" / "methods" / f"{name}.md").exists()] == []


#: What is wrong with how a page is shown: too wide for the window, images that are missing, formulas that are cut.
FAULTS = """() => [
  ...(document.documentElement.scrollWidth > innerWidth ? ["wider than the window"] : []),
  ...[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => "no image " + i.src),
  ...[...document.querySelectorAll(".math")].filter(m => m.scrollHeight > m.clientHeight + 1).map(m => m.textContent),
]"""


def test_pages_fit_a_phone_and_show_their_images_and_formulas(site: dict[Path, Page]) -> None:
    found = {}
    with browser() as opened, opened.new_page(viewport={"width": 390, "height": 844}) as window:
        for file in site:
            window.goto(file.as_uri())
            if faults := window.evaluate(FAULTS):
                found[file.relative_to(root(site)).as_posix()] = faults
    assert found == {}


def test_comments_for_the_tests_are_not_published(site: dict[Path, Page]) -> None:
    assert [file for file, page in site.items() if "<!-- setup" in page.text or "<!-- continues" in page.text] == []
