"""The search page in a real browser: results with images, captions for an image, narrow screens, markup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from live_server import running
from reviewed_audits import SCRIPT, browser
from sremkit.search.searcher import Searcher
from sremkit.search.server.app import build_app

for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason="the extra 'serve' is not installed")
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


def wait_for_results(page: Any, sentence: str) -> None:
    page.locator("#message", has_text=sentence).wait_for()


def test_a_text_finds_images_and_an_image_finds_captions(chromium: Any, searcher: Searcher, tmp_path: Path) -> None:
    text = searcher.pairs.texts[5]
    (expected,) = searcher.search_texts([text], 20)
    assert searcher.pairs.images is not None
    searcher.pairs.images.open(3).save(tmp_path / "query.png")
    with running(build_app(searcher)) as server:
        page = chromium.new_page(viewport={"width": 360, "height": 740})
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
        page.goto(server.url)
        page.keyboard.type(text)
        page.keyboard.press("Enter")
        wait_for_results(page, "20 images")
        found = [element.text_content() for element in page.locator("#results .faint").all()]
        assert found == [hit.image_id for hit in expected]
        page.locator("#results img").first.evaluate("image => image.decode()")  # fails if it cannot be shown
        page.select_option("#k", "10")
        wait_for_results(page, "10 images")
        page.set_input_files("#image", tmp_path / "query.png")
        wait_for_results(page, "10 captions")
        assert page.locator("#asking").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert problems == []


def test_markup_in_captions_and_an_unknown_image(chromium: Any, searcher: Searcher) -> None:
    pairs = replace(searcher.pairs, texts=[SCRIPT] * len(searcher.pairs), images=None)
    marked = Searcher(searcher.model, pairs, searcher.images, searcher.texts)
    with running(build_app(marked)) as server:
        page = chromium.new_page()
        page.goto(server.url)
        page.fill("#text", "a red circle")
        page.keyboard.press("Enter")
        wait_for_results(page, "20 images")
        assert page.locator("#results p").nth(1).text_content() == SCRIPT
        page.locator("#results .frame", has_text="no image").first.wait_for()
        assert page.title() == "Search"
