"""The review in a real browser: keys, undo, edit, reload, two tabs, 10,000 pairs, markup in captions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from live_server import running
from reviewed_audits import SCRIPT, browser, open_review, write_audit
from sremkit.audit.decisions import Decision, PairKey, read_decisions

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return write_audit(tmp_path / "data", texts={1: SCRIPT})


def key(number: int, text: str | None = None) -> str:
    return PairKey(f"p{number}", f"{number % 4}.png", text or f"caption {number}").key


def open_page(opened: Any, url: str, **options: Any) -> Any:
    page = opened.new_context(**options).new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda line: page.problems.append(line.text) if line.type == "error" else None)
    page.goto(url)
    wait_until(page, "document.querySelector('#caption').textContent || !document.querySelector('#empty').hidden")
    return page


def wait_until(page: Any, condition: str, seconds: float = 30.0) -> None:
    """Wait for a condition in JavaScript, by calls from outside: the policy of the page forbids `wait_for_function`."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {condition}"
        page.wait_for_timeout(20)


def press(page: Any, keys: Sequence[str], position: str) -> None:
    """Press keys, then wait until the count states this position."""
    for one in keys:
        page.keyboard.press(one)
    wait_until(page, f"document.querySelector('#count').textContent.startsWith('{position} ')")


def test_decide_undo_edit_and_reload_by_keyboard_alone(chromium: Any, audit: Path) -> None:
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url)
        assert page.text_content("#caption") == "caption 0"
        assert "almost certainly a mismatch" in page.text_content("#verdict")
        press(page, "dkad", "5 of 10")  # drop 0, keep 1, accept the suggestion of 2, drop 3
        assert read_decisions(audit) == {
            key(0): Decision("drop"),
            key(1, SCRIPT): Decision("keep"),
            key(2): Decision("accept", "better 2"),
            key(3): Decision("drop"),
        }
        press(page, "u", "4 of 10")
        assert key(3) not in read_decisions(audit)
        page.keyboard.press("e")
        page.wait_for_selector("#editor[open]")
        page.keyboard.press("Control+a")
        page.keyboard.type("a new caption, k and d included")
        page.keyboard.press("Control+Enter")
        wait_until(page, "document.querySelector('#count').textContent.startsWith('5 ')")
        assert read_decisions(audit)[key(3)] == Decision("edit", "a new caption, k and d included")
        assert "2 of 3 flagged pairs mismatch" in page.text_content("#progress")
        page.reload()
        wait_until(page, "document.querySelector('#count').textContent === '5 of 10 pairs'")  # where it was
        press(page, ["Home"], "1 of 10")
        wait_until(page, "document.querySelector('#verdict').textContent.includes('dropped')")
        press(page, "n", "5 of 10")  # the first undecided one
        press(page, "u", "4 of 10")  # the tab still knows its decisions
        assert key(3) not in read_decisions(audit)
        assert page.problems == []


def test_markup_in_captions_is_shown_as_text(chromium: Any, audit: Path) -> None:
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url)
        press(page, ["ArrowRight"], "2 of 10")
        wait_until(page, "document.querySelector('#caption').textContent.includes('script')")
        assert page.text_content("#caption") == SCRIPT
        page.keyboard.press("g")
        wait_until(page, "document.querySelectorAll('.tile .words').length >= 10")
        assert SCRIPT in page.locator(".tile .words").all_text_contents()
        assert page.title() == "Review: audit"
        assert page.problems == []


def test_two_tabs_see_each_other_and_undo_their_own(chromium: Any, audit: Path) -> None:
    with running(open_review(audit)) as server:
        first, second = open_page(chromium, server.url), open_page(chromium, server.url)
        press(first, "d", "2 of 10")
        wait_until(second, "document.querySelector('#verdict').textContent.includes('dropped')")
        press(second, ["ArrowRight", "ArrowRight", "k"], "4 of 10")
        press(first, "u", "1 of 10")
        assert read_decisions(audit) == {key(2): Decision("keep")}
        first.keyboard.press("u")
        wait_until(first, "!document.querySelector('#error').hidden")
        assert first.text_content("#error") == "there is nothing to undo in this tab"


def test_a_decision_of_another_tab_is_shown_after_one_of_this_tab(chromium: Any, audit: Path) -> None:
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url)
        server.post("/api/decide", {"row": 0, "action": "drop", "client": "another"})
        press(page, ["ArrowRight", "k"], "3 of 10")  # a newer change, before the page asks for those of others
        press(page, ["Home"], "1 of 10")
        wait_until(page, "document.querySelector('#verdict').textContent.includes('dropped')")


def test_a_reload_stays_at_the_pair_and_undo_says_what_left_the_list(chromium: Any, audit: Path) -> None:
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url)
        press(page, "ddd", "4 of 10")
        page.reload()
        wait_until(page, "document.querySelector('#count').textContent === '4 of 10 pairs'")
        page.select_option("[name=decided]", "keep")
        wait_until(page, "!document.querySelector('#empty').hidden")
        page.locator("[name=decided]").evaluate("element => element.blur()")
        page.keyboard.press("u")
        wait_until(page, "document.querySelector('#error').textContent.includes('its pair is not in this list')")
        assert len(read_decisions(audit)) == 2


def test_what_the_audit_says_of_a_pair_is_listed(chromium: Any, audit: Path) -> None:
    table = pq.read_table(audit / "pairs.parquet")
    kinds = pa.array(["file name", *[None] * 39], pa.string())
    pq.write_table(table.append_column("boilerplate", kinds), audit / "pairs.parquet")
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url)
        assert page.locator("#remarks li").all_text_contents() == ["boilerplate: file name"]
        press(page, ["ArrowRight"], "2 of 10")
        wait_until(page, "!document.querySelector('#remarks li')")


def test_filters_and_search(chromium: Any, audit: Path) -> None:
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url)
        page.select_option("[name=show]", "all")
        wait_until(page, "document.querySelector('#count').textContent === '1 of 40 pairs'")
        page.keyboard.press("Escape")
        page.locator("[name=show]").evaluate("element => element.blur()")
        page.keyboard.press("/")
        page.keyboard.type("CAPTION 3")
        wait_until(page, "document.querySelector('#count').textContent === '1 of 11 pairs'")
        page.keyboard.press("Enter")  # back to the pairs
        press(page, ["ArrowRight"], "2 of 11")
        page.dispatch_event("[name=query]", "input")  # a late search for the list that is shown
        page.wait_for_timeout(600)
        press(page, ["ArrowRight"], "3 of 11")
        page.keyboard.press("/")
        page.keyboard.type("no such")
        wait_until(page, "!document.querySelector('#empty').hidden")


def test_a_filter_chosen_by_mouse_gives_the_keys_back_to_the_pairs(chromium: Any, audit: Path) -> None:
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url)
        filter_ = page.locator("[name=decided]")
        filter_.focus()
        filter_.select_option("no")  # by keyboard: the focus stays, for the next choice
        assert page.evaluate("document.activeElement.name") == "decided"
        filter_.click()
        filter_.select_option("any")
        press(page, "k", "2 of 10")
        assert page.input_value("[name=decided]") == "any"
    assert [decision.action for decision in read_decisions(audit).values()] == ["keep"]


def test_keys_after_the_search_key_are_text_while_an_action_runs(chromium: Any, audit: Path) -> None:
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url)
        held: list[Any] = []
        page.route("**/api/decide", lambda route: held.append(route))  # the server takes its time
        page.keyboard.press("k")
        page.keyboard.press("/")
        page.keyboard.type("da")
        assert page.evaluate("document.querySelector('[name=query]').value") == "da"
        deadline = time.monotonic() + 30
        while not held and time.monotonic() < deadline:
            page.wait_for_timeout(20)
        held[0].continue_()
        wait_until(page, "!document.querySelector('#empty').hidden")  # no caption has these letters
        assert page.problems == []
    assert [decision.action for decision in read_decisions(audit).values()] == ["keep"]


def test_images_that_vanish_are_words_until_they_are_back(chromium: Any, audit: Path) -> None:
    place, away = audit.parent / "1.png", audit.parent / "away.png"  # of the last flagged pair, and its better image
    missing = "document.querySelectorAll('#single img[hidden]').length === 2"
    with running(open_review(audit)) as server:
        place.rename(away)
        page = open_page(chromium, server.url)
        press(page, ["End"], "10 of 10")
        wait_until(page, missing)
        page.keyboard.press("k")
        wait_until(page, "document.querySelector('#verdict .badge.keep')")  # the pair was shown again
        assert page.evaluate(missing)
        assert page.locator("#single figcaption:visible").all_text_contents() == ["no image", "no image"]
        away.rename(place)
        page.reload()
        for name in ("image", "better-image"):
            wait_until(page, f"document.querySelector('#{name}').naturalWidth > 0")
        assert page.locator("#single figcaption:visible").count() == 0


def test_ten_thousand_pairs_scroll_in_the_grid(chromium: Any, tmp_path: Path) -> None:
    audit = write_audit(tmp_path / "data", 10_000)
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url)
        page.select_option("[name=show]", "all")
        page.locator("[name=show]").evaluate("element => element.blur()")
        wait_until(page, "document.querySelector('#count').textContent === '1 of 10,000 pairs'")
        page.keyboard.press("g")
        page.wait_for_selector(".tile .words")
        assert page.locator(".tile").count() < 100
        page.keyboard.press("PageDown")
        wait_until(page, "Number(document.querySelector('#count').textContent.split(' ')[0]) > 4")
        assert page.get_attribute("#grid", "aria-activedescendant") == page.get_attribute("[aria-selected=true]", "id")
        page.evaluate("document.querySelector('#grid').scrollTop = 1e9")
        wait_until(page, "[...document.querySelectorAll('.words')].some(e => e.textContent === 'caption 9999')")
        began = time.monotonic()
        page.keyboard.press("Home")
        wait_until(page, "[...document.querySelectorAll('.words')].some(e => e.textContent === 'caption 0')")
        assert time.monotonic() - began < 5
        press(page, "ddkd", "5 of 10,000")
        found = read_decisions(audit)
        assert [found[key(k)].action for k in range(4)] == ["drop", "drop", "keep", "drop"]
        wait_until(page, "document.querySelectorAll('.tile.drop').length === 3")
        assert page.locator(".tile").count() < 100
        assert page.problems == []


def test_what_was_decided_is_not_cut_off_in_narrow_tiles(chromium: Any, audit: Path) -> None:
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url, viewport={"width": 360, "height": 740})
        press(page, "a", "2 of 10")  # "suggestion accepted" is the longest
        page.keyboard.press("g")
        page.wait_for_selector(".tile .badge.accept")
        badge, tile = (page.locator(name).first.bounding_box() for name in (".badge.accept", ".tile.accept"))
        assert badge["y"] + badge["height"] <= tile["y"] + tile["height"]
        assert badge["x"] + badge["width"] <= tile["x"] + tile["width"]
        assert badge["height"] < 30  # on one line


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_screens_have_no_horizontal_scrolling_and_text_has_contrast(
    chromium: Any, audit: Path, scheme: str
) -> None:
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url, viewport={"width": 360, "height": 740}, color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        for name in ("text", "faint", "accent", "good", "bad", "warn"):
            for back in ("back", "panel"):
                assert contrast(css(page, name), css(page, back)) >= 4.5, (name, back)
        page.keyboard.press("g")
        page.wait_for_selector(".tile .words")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_nothing_moves_while_images_load(chromium: Any, audit: Path) -> None:
    with running(open_review(audit)) as server:
        page = open_page(chromium, server.url)
        moved = page.evaluate(
            "() => new Promise(done => { let sum = 0; new PerformanceObserver(list => list.getEntries().forEach("
            "e => { sum += e.value; })).observe({type: 'layout-shift', buffered: true}); "
            "setTimeout(() => done(sum), 400); })"
        )
        assert moved < 0.1


def test_a_token_in_the_address_opens_the_page_and_leaves_the_address(chromium: Any, audit: Path) -> None:
    with running(open_review(audit, token="secret")) as server:
        page = open_page(chromium, f"{server.url}/?token=secret")
        assert page.url == f"{server.url}/"
        press(page, "d", "2 of 10")
        assert page.problems == []


def css(page: Any, name: str) -> str:
    return page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colors (WCAG 2)."""

    def luminance(color: str) -> float:
        parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)
