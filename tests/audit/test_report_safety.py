"""The page of an audit loads nothing, obeys nothing, stays small, and can be read by anybody anywhere."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from report_pages import SUMMARY, columns, full_table, make, plain
from sremkit.audit import report
from sremkit.reports.page import TEMPLATES


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    page = make(tmp_path, columns(30), SUMMARY, plain)
    sources = page.attributes("img", "src")
    assert len(sources) >= 15
    assert all(source.startswith("data:image/") for source in sources)
    links = page.attributes("a", "href")
    anchors = {attributes.get("id") for _, attributes in page.elements}
    assert links
    assert all(link.startswith("#") and link[1:] in anchors for link in links)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "object", "embed", "video", "audio", "form", "base"}
    assert not re.search(r"url\(|@import|https?://", page.html)
    assert not any(key.startswith("on") for _, attributes in page.elements for key in attributes)
    (policy,) = [c for c in page.attributes("meta", "content") if "default-src" in c]
    assert policy.startswith("default-src 'none'")


BAD = "</bdi></p><script>alert('x')</script><img src=http://a/b onerror=\"x()\">&amp; {{ 7 * 7 }}"


@pytest.mark.parametrize("image_of", [plain, None])
def test_markup_in_the_data_is_shown_and_never_obeyed(
    tmp_path: Path, image_of: Callable[[int], Image.Image] | None
) -> None:
    """The page has the same elements as with harmless words, and says the very words."""
    bad = make(tmp_path / "bad", *full_table(12, BAD), image_of)
    good = make(tmp_path / "good", *full_table(12, "x" * len(BAD)), image_of)
    assert [tag for tag, _ in bad.elements] == [tag for tag, _ in good.elements]
    assert [sorted(a) for _, a in bad.elements] == [sorted(a) for _, a in good.elements]
    assert "script" not in {tag for tag, _ in bad.elements}
    assert bad.all("title") == ["<script>x"]
    assert bad.text.count(BAD) == good.text.count("x" * len(BAD)) > 40
    assert any(alt == f"Image of pair {BAD}-0" for alt in bad.attributes("img", "alt")) == bool(image_of)


def test_huge_captions_are_cut_and_can_be_shown_whole(tmp_path: Path) -> None:
    texts = ["word " * 100, "W" * 5000, "short", "last"]
    page = make(tmp_path, columns(4, text=texts, is_mismatch=[True] * 4))
    first, second, third, _ = [text for text in page.all("div", "caption") if not text.startswith("better")]
    # 500 characters end in a space that goes: the short form has at most 162, the whole one 499.
    assert first.count("word") == 160 // 5 + 100
    assert "show all" in first
    assert "more characters" not in first
    assert second.count("W") == 160 + 3000
    assert "and 2,000 more characters" in second
    assert third == "short"


@pytest.mark.parametrize("text", ["מישהו רוכב על אופניים", "一隻狗在雪地裡奔跑", "كلب يجري", "ไทย", "🙂 e\u0301"])
def test_captions_of_every_script_stand_as_they_are_in_their_own_direction(tmp_path: Path, text: str) -> None:
    page = make(tmp_path, columns(2, text=[text, "other"]))
    assert page.html.count('charset="utf-8"') == 1
    cards = [k for k, (_, a) in enumerate(page.elements) if "caption" in (a.get("class") or "").split()]
    (card,) = [k for k in cards if text in page.texts[k]]
    assert page.elements[card][1]["dir"] == "auto"


def test_control_characters_and_halves_of_characters_are_replaced(tmp_path: Path) -> None:
    page = make(tmp_path, columns(2, text=["a\x00b\x1b\x85c", "d"]), {"note": "e\udc80f"})
    assert "a�b��c" in page.text
    assert "e�f" in page.text


def test_the_page_stays_under_15_megabytes_whatever_the_input(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 600
    table, summary = full_table(n, "x")
    table["text"] = [f"{k}" + "&'" * 2000 for k in range(n)]  # five bytes each, once escaped
    table["better_text"] = ["'" * 4000] * n
    table["id"] = [f"{k}" + "'" * 5000 for k in range(n)]
    table["duplicate_text_group"] = table["duplicate_image_group"] = np.arange(n) % 20
    table["problem"] = [f"{k}" + "&" * 5000 for k in range(n)]
    summary["problems"] = {f"{k}" + "&" * 500: 1 for k in range(500)}
    summary["settings"] = {f"{k}" + "&" * 500: "&" * 5000 for k in range(500)}
    summary["note"] = "&" * 100_000

    def noise(row: int) -> Image.Image:  # the largest thumbnails there are
        return Image.fromarray(rng.integers(0, 256, (200, 200, 3), dtype=np.uint8))

    page = make(tmp_path, table, summary, noise)
    assert len(page.attributes("img", "src")) > 150
    assert len(page.html.encode()) < 15_000_000
    without_images = make(tmp_path, table, summary)
    assert len(without_images.html.encode()) < 15_000_000 - report.MAX_IMAGE_BYTES
    assert len(page.all("p", "reason")) == 20
    assert "… and 480 rarer reasons." in page.text
    assert len(page.all("dt")) < 4 + 3 * 81
    assert len(page.all("p", "callout")[0]) < 3100


def test_thumbnails_stop_when_their_room_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr(report, "MAX_IMAGE_BYTES", 50_000)
    noise = Image.fromarray(rng.integers(0, 256, (300, 200, 3), dtype=np.uint8))
    page = make(tmp_path, columns(60, better_image=["image-3.jpg"] * 60), SUMMARY, lambda row: noise)
    total = sum(len(source) for source in page.attributes("img", "src"))
    assert 10_000 < total <= 50_000
    assert len(page.all("span", "noimage")) > 30
    assert len(page.all("li", "pair")) == 30 + 9  # the cards themselves are all there


def test_thumbnails_are_small(tmp_path: Path) -> None:
    page = make(tmp_path, columns(2), SUMMARY, lambda row: Image.new("L", (4000, 3000)))
    for source in page.attributes("img", "src"):
        assert source.startswith("data:image/webp;base64,")
        assert len(source) < 3000


def test_headings_descend_one_step_at_a_time_and_every_image_has_an_alt_text(tmp_path: Path) -> None:
    table, summary = full_table(40, "x")
    page = make(tmp_path, table, summary, plain)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all("alt" in attributes for tag, attributes in page.elements if tag == "img")
    assert all(a.get("role") == "img" and a.get("aria-label") for tag, a in page.elements if tag == "svg")


def luminance(color: str) -> float:
    """Relative luminance as the accessibility guidelines (WCAG 2) define it."""
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_what_is_behind_them_in_light_and_dark(dark: bool) -> None:
    style = (TEMPLATES / "base.html").read_text() + (TEMPLATES / "audit.html").read_text()
    light, dark_style = style.split("@media (prefers-color-scheme: dark)")
    pattern = r"--(\w+): (#[0-9a-f]{3,6});"
    colors = dict(re.findall(pattern, light))
    if dark:
        colors |= dict(re.findall(pattern, dark_style))
    for words in ("ink", "soft", "good", "bad", "accent"):
        for behind in ("page", "card"):
            low, high = sorted((luminance(colors[words]), luminance(colors[behind])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (words, behind)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_sticks_out_sideways_on_a_phone_or_a_desktop(tmp_path: Path, width: int) -> None:
    """Long words without a gap and very wide images are what breaks a page."""
    table, summary = full_table(24, "W" * 900)
    make(tmp_path, table, summary, lambda row: Image.new("RGB", (4000 if row % 2 else 40, 400)))
    frame = (
        f'<body><iframe src="report.html" style="width:{width}px;height:900px;border:0" '
        'onload="let d=this.contentDocument.documentElement;'
        'document.title=[d.clientWidth,d.scrollWidth,d.scrollHeight]"></iframe>'
    )
    (tmp_path / "frame.html").write_text(frame)
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files",
               f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", (tmp_path / "frame.html").as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (seen,) = re.findall(r"<title>(\d+),(\d+),(\d+)</title>", done.stdout)
    inside, needed, height = map(int, seen)
    assert width - 20 <= inside <= width
    assert needed <= inside
    assert height > 2000  # it was really laid out
