"""The page of an audit says what was found: counts, cards, duplicates, problems, whatever the table lacks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from report_pages import SUMMARY, columns, make, plain
from sremkit.audit import report
from sremkit.audit.report import write_report
from sremkit.cli.main import build_parser
from sremkit.errors import DataError


def test_the_top_of_the_page_shows_the_findings(tmp_path: Path) -> None:
    page = make(tmp_path, columns(10), SUMMARY)
    assert page.all("h1") == ["2,417 of 5,986 scored pairs look mismatched"]
    (finding,) = page.all("p", "finding")
    assert "An estimated 39.7 % of the pairs" in finding.replace("\xa0", " ")
    assert "(95 % confidence interval: 38.1 % to 41.4 %)" in finding.replace("\xa0", " ")
    assert page.all("title") == ["pairs.csv"]
    settings = dict(zip(page.all("dt"), page.all("dd"), strict=True))
    assert settings["settings.matcher.dim"] == "512"
    assert settings["precision"] == "0.95"
    assert settings["scoring"] == "12.5"
    assert f"srem export {tmp_path} -o keep.txt"[-60:] in "\n".join(page.all("code"))
    assert "srem audit --help" not in page.text
    assert "0 is a certain mismatch, 1 a certain match" in page.text
    assert "Two separate modes" in page.text


@pytest.mark.parametrize("can_tell", [True, False])
def test_the_top_of_the_page_does_not_reassure_where_near_mismatches_cannot_be_told(
    tmp_path: Path, can_tell: bool
) -> None:
    near = {"low": 0.381, "high": 0.667, "by_kind": {}, "can_tell": can_tell}
    (finding,) = make(tmp_path, columns(10), {**SUMMARY, "near_mismatches": near}).all("p", "finding")
    finding = finding.replace("\xa0", " ")
    assert ("An estimated 39.7 % of the pairs are mismatched (" in finding) == can_tell
    assert ("it may be up to 66.7 %" in finding) == (not can_tell)
    assert ("have an unrelated caption" in finding) == (not can_tell)


def test_cards_show_caption_better_caption_score_and_ranks(tmp_path: Path) -> None:
    page = make(tmp_path, columns(10), SUMMARY, plain)
    first = page.all("li", "pair")[0]
    for part in ("caption 0", "better 0", "score 0.050", "caption rank 10", "image rank 10", "pair-0"):
        assert part in first
    assert page.all("div", "wrong")[0] == "caption 0"
    assert "pair-0 · image-0.jpg" in first
    assert "data:" not in page.text  # thumbnails are images, never text
    assert page.all("div", "right")[0] == "better 0"


def test_embeddings_alone_make_a_page_without_images(tmp_path: Path) -> None:
    table = columns(6, better_text_id=[f"pair-{k + 1}" for k in range(6)])
    for name in ("image", "text", "better_text"):
        table[name] = pa.nulls(6, pa.string())
    page = make(tmp_path, table, SUMMARY)
    assert page.attributes("img", "src") == []
    assert page.all("span", "noimage") == []
    first = page.all("li", "pair")[0]
    assert "caption unknown" in first
    assert "the caption of pair-1" in first


def test_an_image_that_is_gone_leaves_a_placeholder(tmp_path: Path) -> None:
    def image_of(row: int) -> Image.Image | None:
        if row == 0:
            raise DataError("gone")
        return None if row == 1 else plain(row)

    page = make(tmp_path, columns(8), SUMMARY, image_of)
    assert page.all("span", "noimage") == ["no image"] * 2
    assert len(page.attributes("img", "src")) == 6


def test_each_card_has_the_image_of_its_own_row_and_of_the_one_that_fits_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def image_of(row: int) -> Image.Image:
        asked.append(row)
        return plain(row)

    table = columns(9, image=[f"i{k % 6}" for k in range(9)], is_mismatch=[False] * 5 + [True] + [False] * 3)
    table["better_image"] = [None] * 5 + ["i2", None, None, None]
    monkeypatch.setattr(report, "ROW_GROUP_SIZE", 2)
    page = make(tmp_path, table, SUMMARY, image_of, row_group_size=2)  # rows are found wherever they lie
    assert "pair-5" in page.all("li", "pair")[0]
    assert "caption 5" in page.all("li", "pair")[0]
    assert asked == [5, 2, 0, 1, 3, 4, 6, 7, 8]  # row 2 is the first with the image i2; it is made once


def test_the_lowest_scores_come_first_and_their_number_is_bounded(tmp_path: Path) -> None:
    n = 400
    score = np.random.default_rng(0).permutation(n) / n
    page = make(tmp_path, columns(n, match_probability=score, is_mismatch=score < 0.5), SUMMARY)
    shown = [int(card.split("pair-")[1].split()[0]) for card in page.all("li", "pair")]
    lowest = np.argsort(score).tolist()
    assert shown[:48] == lowest[:48]
    assert shown[48:57] == lowest[191:200][::-1]  # just below the cutoff, the nearest first
    assert shown[57:] == lowest[200:209]
    assert [h for h in page.all("h3") if h.startswith("Just")] == [
        "Just below the cutoff: flagged",
        "Just above the cutoff: not flagged",
    ]


def test_among_equal_scores_high_energy_comes_first(tmp_path: Path) -> None:
    table = columns(4, match_probability=[0.0] * 4, is_mismatch=[True] * 4)
    table["energy_i2t"], table["energy_t2i"] = [0.0, 3.0, 1.0, None], [0.0, 0.0, 1.0, float("nan")]
    page = make(tmp_path, table)
    shown = [card.split("pair-")[1].split()[0] for card in page.all("li", "pair")]
    assert shown == ["1", "2", "0", "3"]


def test_one_caption_of_a_thousand_images_does_not_fill_the_page(tmp_path: Path) -> None:
    n = 300
    text = ["buy now"] * 150 + [f"caption {k}" for k in range(150)]
    page = make(tmp_path, columns(n, text=text, is_mismatch=[True] * 200 + [False] * 100), SUMMARY)
    cards = page.all("li", "pair")
    assert sum("buy now" in card for card in cards) == report.MAX_SAME_CAPTION
    assert "caption 0" in cards[2]


def test_groups_of_duplicates_are_counted_and_the_largest_come_first(tmp_path: Path) -> None:
    group = [None, 5, 5, 7, 7, 7, -1, -1]
    page = make(
        tmp_path,
        columns(8, duplicate_text_group=pa.array(group, pa.int64()), duplicate_image_group=[-1] * 8),
        SUMMARY,
        plain,
    )
    assert "Same caption: 2 groups, 5 pairs" in page.all("h3")
    assert not any("same image" in heading for heading in page.all("h3"))
    first, second = page.all("li", "group")
    assert first.startswith("3 pairs, 1 flagged as mismatch caption 3")  # the first four are wrong, of them row 3
    assert second.startswith("2 pairs, 2 flagged as mismatches caption 1")


def test_a_group_shows_each_image_once(tmp_path: Path) -> None:
    image = ["a", "a", "b", "b", "c", "d"]
    page = make(tmp_path, columns(6, image=image, duplicate_image_group=[0, 0, 0, 0, -1, -1]), SUMMARY)
    (group,) = page.all("li", "group")
    assert "pair-0, pair-2" in group
    assert re.findall(r"caption \d", group) == ["caption 0", "caption 2"]
    assert group.startswith("4 pairs, 3 flagged as mismatches")


def test_problems_are_counted_with_examples(tmp_path: Path) -> None:
    problem = [None, "cannot be read: a.jpg", "cannot be read: b.jpg", "something else", None, None]
    score = [None if p else 0.5 for p in problem]
    page = make(
        tmp_path,
        columns(6, problem=problem, match_probability=score, is_mismatch=[False] * 6),
        {**SUMMARY, "problems": {"is empty": 3, "cannot be read": 1200}},
    )
    assert page.all("p", "reason") == ["cannot be read: 1,200 pairs", "is empty: 3 pairs"]
    read, apart = page.all("ul", "examples")
    assert "pair-1" in read
    assert "pair-2" in read
    assert "something else" in apart
    assert "1,203" in page.all("dl", "tiles")[0]


def test_without_a_summary_everything_is_counted_from_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "ROW_GROUP_SIZE", 2)
    problem = [None, "late", "empty", "empty", None]
    score, flag = [0.1, None, None, None, 0.5], [True, None, None, None, False]
    page = make(tmp_path, columns(5, problem=problem, match_probability=score, is_mismatch=flag))
    assert page.all("h1") == ["1 of 2 scored pairs look mismatched"]
    assert page.all("p", "reason") == ["empty: 2 pairs", "late: 1 pair"]
    empty, late = page.all("ul", "examples")
    assert re.findall(r"pair-\d", empty) == ["pair-2", "pair-3"]
    assert re.findall(r"pair-\d", late) == ["pair-1"]


def test_too_little_data_is_stated_and_no_verdict_is_given(tmp_path: Path) -> None:
    summary = {
        "pairs": 30,
        "scored": 30,
        "mismatches": 0,
        "noise_rate": None,
        "note": "30 pairs are too few.",
    }
    page = make(tmp_path, columns(30, is_mismatch=[False] * 30), summary)
    assert page.all("h1") == ["Too little data for a verdict"]
    assert "30 pairs are too few." in page.all("p", "callout")[0]
    assert "look mismatched" not in page.text
    assert "Lowest scores" in page.all("h2")


RANK_ONLY = {"pairs": 30, "scored": 30, "noise_rate": None, "note": "30 pairs are too few."}


@pytest.mark.parametrize("flagged", [0, 6])
def test_ranks_are_not_shown_as_probabilities(tmp_path: Path, flagged: int) -> None:
    score = (np.arange(30) + 0.5) / 30
    table = columns(30, match_probability=score, is_mismatch=[k < flagged for k in range(30)])
    page = make(tmp_path, table, {**RANK_ONLY, "mismatches": flagged})
    assert page.all("figure") == []  # a histogram of ranks is always flat
    for claim in ("Probability", "Two separate modes", "certain", "look mismatched"):
        assert claim not in page.text
    assert "0 is the lowest and 1 the highest rank; it is not a probability" in page.text


def test_pairs_flagged_by_rank_are_described_as_lowest_scores(tmp_path: Path) -> None:
    table = columns(30, is_mismatch=[k < 6 for k in range(30)])
    page = make(tmp_path, table, {**RANK_ONLY, "mismatches": 6, "cutoff": {"fraction": 0.2}})
    assert page.all("h1") == ["The 6 lowest scores of 30 pairs"]
    (finding,) = page.all("p", "finding")
    assert "The noise rate could not be estimated" in finding
    assert "Pairs with the lowest scores" in page.all("h2")
    assert "flagged as mismatches620.0 % of the scored pairs" in page.all("dl", "tiles")[0].replace("\xa0", " ")


def test_when_everything_is_fine_the_page_says_so(tmp_path: Path) -> None:
    rate = {"estimate": 0.002, "low": -0.001, "high": 0.011}
    page = make(tmp_path, columns(50, is_mismatch=[False] * 50), {"noise_rate": rate, "note": ""})
    assert page.all("h1") == ["No pair is flagged among 50 scored pairs"]
    assert page.all("p", "callout") == []
    assert "Most certain mismatches" not in page.all("h2")
    assert "left:0.00%" in page.html  # the interval's bar begins at nothing, not before it


def test_a_page_without_scores_says_so(tmp_path: Path) -> None:
    table = {
        "id": ["a", "b"],
        "text": ["x", "y"],
        "match_probability": pa.nulls(2, pa.float64()),
        "is_mismatch": pa.nulls(2, pa.bool_()),
        "problem": ["broken", "broken"],
    }
    page = make(tmp_path, table, {"pairs": 2, "scored": 0, "problems": {"broken": 2}}, plain)
    assert page.all("h1") == ["No pair could be scored"]
    assert page.all("svg") == []
    assert page.all("p", "reason") == ["broken: 2 pairs"]


def test_the_barest_tables_make_a_page(tmp_path: Path) -> None:
    assert make(tmp_path / "a", {"match_probability": [0.1, 0.9]}).all("h1") == ["Too little data for a verdict"]
    nothing = pa.array([], pa.float64())
    assert make(tmp_path / "b", {"match_probability": nothing}).all("h1") == ["There are no pairs to score"]
    odd = {"pairs": "many", "noise_rate": {"estimate": "x"}, "cutoff": 3, "curve": [], "duplicates": None}
    assert make(tmp_path / "c", columns(4), odd).all("h1") == ["2 of 4 scored pairs look mismatched"]
    for damaged in ({"noise_rate": [1]}, {"problems": None}, {"settings": []}, {"note": None}):
        with pytest.raises(DataError, match=r"is damaged.*makes it again"):
            make(tmp_path / "c", columns(4), damaged)
    infinite = columns(4, match_probability=[np.nan, 0.1, 0.2, np.nan])
    assert len(make(tmp_path / "d", infinite).all("figure")) == 1


def test_the_cutoff_is_drawn_and_printed_and_flagged_pairs_are_compared_with_the_estimate(tmp_path: Path) -> None:
    curve = {"threshold": [0.0, 0.5, 1.0], "expected_precision": [None, 0.9, 0.4], "expected_recall": [0.0, 0.8, 1.0]}
    edges = [-1.0, 0.0, 1.0, 2.0]
    separation = {"edges": edges, "given": [0.3, 0.2, 0.5], "negatives": [0.7, 0.2, 0.1]}
    summary = {**SUMMARY, "threshold": 0.25, "curve": curve}
    summary["separation"] = {**separation, "match_probability": [0.0, 0.1, 0.25, 1.0]}
    page = make(tmp_path, columns(8), summary)
    assert len(page.all("figure")) == 3
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    # The plot is 300 wide and begins at 46: 0.25 of it is 121.
    # The statistic 1 is at 0.75 between the middles -0.5 and 1.5.
    places = re.findall(r'<line class="cutoff" x1="([\d.]+)"', html)
    assert places == ["121.0", "271.0", "121.0"]
    assert "The cutoff lies at a match probability of 0.250" in page.text
    assert "an estimated" in page.text


def test_issues_have_a_section_with_counts_and_examples(tmp_path: Path) -> None:
    kinds = [None, "file name", None, "template", None, None]
    page = make(tmp_path, columns(6, boilerplate=pa.array(kinds)), {**SUMMARY, "issues": {"boilerplate": 2}})
    assert "Boilerplate captions: 2 pairs" in page.all("h3")
    assert any("pair-1" in entry and "file name" in entry for entry in page.all("li"))
    assert not any(title.startswith("Tiny or blank") for title in page.all("h3"))


def test_the_page_can_be_written_elsewhere(tmp_path: Path) -> None:
    make(tmp_path / "audit", columns(4))
    before = sorted(p.name for p in (tmp_path / "audit").iterdir())
    target = tmp_path / "page.html"
    assert write_report(tmp_path / "audit", image_of=None, out=target) == target
    assert target.read_text() == (tmp_path / "audit" / "report.html").read_text()
    assert sorted(p.name for p in (tmp_path / "audit").iterdir()) == before


def test_a_folder_without_a_finished_audit_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no finished audit"):
        write_report(tmp_path, image_of=None)
    (tmp_path / "pairs.parquet").write_bytes(b"no")
    with pytest.raises(DataError, match=r"pairs\.parquet is damaged"):
        write_report(tmp_path, image_of=None)
    make(tmp_path, columns(2))
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(DataError, match=r"summary.json, line 1: not valid JSON"):
        write_report(tmp_path, image_of=None)


def test_all_flagged_pairs_are_listed_with_their_place_in_other_orders(tmp_path: Path) -> None:
    n = 300
    table = columns(n, id=[f"pair-{n - k:03d}" for k in range(n)], better_image=["image-1.jpg"] + [None] * (n - 1))
    table["unsupported_words"] = [None, "snow, dog"] + [None] * (n - 2)
    table["neighbor_text"] = ["what a similar image shows"] + [None] * (n - 1)
    page = make(tmp_path, table, SUMMARY, plain)
    rows = page.all("li", "row")
    assert len(rows) == 150  # all that are flagged
    assert rows[0].startswith("0.002")  # the lowest first
    assert "what a similar image shows" in rows[0]
    assert "snow, dog" in rows[1]
    styles = [a["style"] for tag, a in page.elements if tag == "li" and "row" in (a.get("class") or "").split()]
    assert styles[0] == "--i:149;--t:0"  # the id of the lowest score is the last by name
    classes = [a["class"] for tag, a in page.elements if tag == "li" and "row" in (a.get("class") or "").split()]
    assert classes[:3] == ["row b o c", "row b w c", "row b c"]
    assert page.all("summary").count("Show the list of 150") == 1
    assert "pair-300" in page.all("bdi", "copy")  # can be selected with a click


def test_only_the_first_flagged_pairs_of_the_list_have_an_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_LIST_IMAGES", 40)
    page = make(tmp_path, columns(300), SUMMARY, plain)
    assert len(page.all("li", "row")) == 150
    without = [a for tag, a in page.elements if tag == "span" and a.get("class") == "noimg"]
    assert len(without) == 110


def test_a_few_flagged_pairs_are_cards_and_no_list(tmp_path: Path) -> None:
    page = make(tmp_path, columns(20), SUMMARY)
    assert page.all("li", "row") == []
    assert "All flagged pairs" not in page.text


def test_the_list_ends_where_its_room_is_full_and_says_how_to_get_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_LIST_BYTES", 40_000)
    page = make(tmp_path, columns(600), SUMMARY)
    listed = len(page.all("li", "row"))
    assert 50 < listed < 100
    assert f"The {listed} lowest scores of 300" in page.text
    assert any(code.endswith("--select drop -o flagged.csv") for code in page.all("code"))


def test_flagged_pairs_are_compared_with_the_estimate_and_what_is_left_is_stated(tmp_path: Path) -> None:
    summary = {**SUMMARY, "scored": 1000, "mismatches": 300, "expected_precision": 0.9}
    summary["noise_rate"] = {"estimate": 0.4, "low": 0.3, "high": 0.5}
    page = make(tmp_path / "a", columns(8), summary)
    # Of 300 flagged 270 should be wrong, and 400 in all: 130 are not flagged.
    assert "about 270 should be wrong; then about 130 mismatches are not flagged" in page.text
    assert "wrong among the kept pairs" not in page.text
    summary["remaining"] = {"kept": 700, "wrong": 86.1, "low": 70.0, "high": 140.0}
    text = make(tmp_path / "b", columns(8), summary).text.replace("\xa0", " ")
    assert "for the 700 kept pairs: 12.3 % are still wrong (95 % interval: 10.0 % to 20.0 %)" in text
    assert "wrong among the kept pairs" in text
    summary["rate_counts"] = "the rate counts <some> pairs"
    summary["remaining"]["sentence"] = "of the 700 kept pairs some are wrong"
    text = make(tmp_path / "c", columns(8), summary).text
    assert text.count("The rate counts <some> pairs. Of the 700 kept pairs some are wrong.") == 1
    assert text.lower().count("the rate counts") == 1


def test_next_steps_are_commands_that_can_be_run(tmp_path: Path) -> None:
    folder = tmp_path / "my audit"
    source = {"path": "/data/the pairs.csv", "format": "table", "options": {"image": "file", "text": "a title"}}
    page = make(folder, columns(8), {**SUMMARY, "source": source})
    commands = [shlex.split(code) for code in page.all("code") if code.startswith("srem ")]
    assert ["srem", "review", str(folder)] in commands
    expected = ["--image", "file", "--text", "a title", "--reuse", str(folder), "-o", "features"]
    assert ["srem", "features", "/data/the pairs.csv", *expected] in commands
    for command in commands:
        build_parser().parse_args(command[1:])  # fails for an unknown option
    memory = make(tmp_path / "m", columns(8), {**SUMMARY, "source": {"path": "x", "format": "frame"}})
    assert not any("srem features" in code for code in memory.all("code"))
