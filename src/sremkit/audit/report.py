"""The audit's report: one page that opens anywhere, loads nothing and stays small whatever the data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.audit import report_words as words
from sremkit.audit.report_rows import ReportRows
from sremkit.errors import DataError
from sremkit.reports.histogram import stacked_histogram
from sremkit.reports.page import picture_uri, render
from sremkit.training.checkpoint import replace_file

if TYPE_CHECKING:
    from PIL.Image import Image

# Everything on the page is bounded, so that the whole stays under 15 MB. The words of all cards, at their
# longest and all of them escaped, come to about 3 MB.
PICTURE_BYTES = 10_000_000
CERTAIN, CERTAIN_AT_ONCE, BORDERLINE = 48, 12, 9
SAME_CAPTION = 2  # cards of one caption, which may stand beside a thousand pictures
DUPLICATE_GROUPS, GROUP_PICTURES, GROUP_ROWS = 9, 6, 60
REASONS, EXAMPLES, EXAMPLES_APART = 20, 3, 12
FIGURES = {
    "mismatch_score": ("Score", "How likely the pair is right. Low is bad."),
    "energy_i2t": ("Energy, picture to captions", "High means that no caption stands out for the picture."),
    "energy_t2i": ("Energy, caption to pictures", "High means that no picture stands out for the caption."),
}


def write_report(
    folder: Path, *, picture_of: Callable[[int], Image | None] | None, out: Path | None = None
) -> Path:
    """Write the page of a finished audit.

    Args:
        folder: holds `pairs.parquet` and `summary.json`.
        picture_of: gives the picture of a row of `pairs.parquet`, or None; leave it out where only embeddings
            are known.
        out: the file to write; `report.html` in the folder unless said.

    Returns:
        The file written.
    """
    folder = Path(folder)
    rows, summary = ReportRows(folder / "pairs.parquet"), _read_summary(folder / "summary.json")
    thumbnails = Thumbnails(picture_of)
    score, wrong = rows.numbers("mismatch_score"), rows.flags("is_mismatch")
    about = {key: summary[key] for key in ("source", "settings", "versions") if key in summary}
    numbers = _numbers(summary, score, wrong)
    page = render(
        "audit.html",
        title=words.name(Path(str(_mapping(summary.get("source")).get("path") or folder.resolve())).name),
        numbers=numbers,
        figures=_figures(rows, score, wrong, order_only=numbers["order_only"]),
        has_pictures=picture_of is not None,
        certain_at_once=CERTAIN_AT_ONCE,
        **_cards(rows, score, wrong, thumbnails),
        same_captions=_duplicates(rows, "duplicate_text_group", wrong, thumbnails),
        same_pictures=_duplicates(rows, "duplicate_image_group", wrong, thumbnails),
        problems=_problems(rows, _mapping(summary.get("problems"))),
        choice=words.settings_lines(_mapping(summary.get("choice"))),
        settings=words.settings_lines(about),
        seconds=words.settings_lines(_mapping(summary.get("seconds"))),
    )
    target = folder / "report.html" if out is None else Path(out)
    replace_file(target, page)
    return target


class Thumbnails:
    """Small pictures by row, as many as the page has room for."""

    def __init__(self, picture_of: Callable[[int], Image | None] | None) -> None:
        self._picture_of = picture_of
        self._made: dict[int, str | None] = {}
        self._room = PICTURE_BYTES

    def __call__(self, row: int) -> str | None:
        if row not in self._made:
            self._made[row] = self._make(row)
        data = self._made[row]
        if data is None or len(data) > self._room:
            return None
        self._room -= len(data)  # also the second time: the page then holds it twice
        return data

    def _make(self, row: int) -> str | None:
        try:
            picture = None if self._picture_of is None else self._picture_of(row)
            return None if picture is None else picture_uri(picture)
        except (DataError, OSError):  # the file may have gone since it was judged; the page is worth having
            return None


def _numbers(summary: Mapping[str, Any], score: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """The counts at the head of the page; the summary's where it has them, else counted here."""
    pairs = _count(summary.get("pairs"), len(score))
    judged = _count(summary.get("judged"), int(np.isfinite(score).sum()))
    rate = {key: _share(value) for key, value in _mapping(summary.get("noise_rate")).items()}
    return {
        "pairs": pairs,
        "judged": judged,
        "wrong": _count(summary.get("mismatches"), int(wrong.sum())),
        "order_only": summary.get("noise_rate", rate) is None,  # then scores are ranks, not likelihoods
        "rate": rate.get("estimate"),
        "low": rate.get("low"),
        "high": rate.get("high"),
        "expected_precision": _number(summary.get("expected_precision")),
        "candidates": _number(summary.get("candidates")),
        "note": words.clean(summary.get("note") or "")[: words.LONG],
    }


def _figures(
    rows: ReportRows, score: np.ndarray, wrong: np.ndarray, *, order_only: bool
) -> list[dict[str, str]]:
    drawn = []
    kinds = ("called", "not called") if order_only else ("look wrong", "right")
    for column, (name, explanation) in FIGURES.items():
        values = score if column == "mismatch_score" else rows.numbers(column)
        finite = np.isfinite(values)
        if not finite.any() or (order_only and values is score):  # the histogram of ranks is always flat
            continue
        limits = (0.0, 1.0) if values is score else tuple(np.percentile(values[finite], (0.2, 99.8)))
        groups = {"bar-wrong": values[finite & wrong], "bar-right": values[finite & ~wrong]}
        bad, good = (f"{len(group):,}" for group in groups.values())
        counts = f"{bad} pairs {kinds[0]}, {good} {kinds[1]}"
        title = f"Histogram of {column}: {counts}, median {np.median(values[finite]):.3g}"
        svg = stacked_histogram(groups, limits=limits, xlabel=column, title=title)
        drawn.append({"name": name, "svg": svg, "explanation": explanation})
    return drawn


def _cards(
    rows: ReportRows, score: np.ndarray, wrong: np.ndarray, thumbnails: Thumbnails
) -> dict[str, list[dict[str, Any]]]:
    """The pairs that are certainly wrong, and those on either side of the line."""
    energy = np.nan_to_num(rows.numbers("energy_i2t")) + np.nan_to_num(rows.numbers("energy_t2i"))
    judged = np.isfinite(score)
    order = np.lexsort((-energy, np.where(judged, score, np.inf)))  # among equal scores the energy decides
    bad, good = order[wrong[order] & judged[order]], order[~wrong[order] & judged[order]]
    likely, edge = bad[: 4 * CERTAIN].tolist(), bad[-BORDERLINE:][::-1].tolist()
    just_right = good[:BORDERLINE].tolist()
    facts = rows.read([*likely, *edge, *just_right])
    certain = _varied(likely, facts)[:CERTAIN]
    just_wrong = [row for row in edge if row not in certain]
    fitting = {facts[row]["better_image"] for row in (*certain, *just_wrong)} - {None}
    row_of_image = rows.first_rows("image", fitting)

    def card(row: int) -> dict[str, Any]:
        picture, other = thumbnails(row), row_of_image.get(facts[row]["better_image"])
        other_picture = None if other is None else thumbnails(other)
        return {**_said(row, facts[row]), "picture": picture, "other_picture": other_picture}

    chosen = {"certain": certain, "just_wrong": just_wrong, "just_right": just_right}
    return {part: [card(row) for row in members] for part, members in chosen.items()}


def _varied(members: list[int], facts: Mapping[int, dict[str, Any]]) -> list[int]:
    """Leave out what would show one caption over and over."""
    seen: dict[Any, int] = {}
    kept = []
    for row in members:
        text = facts[row]["text"]
        seen[text] = seen.get(text, 0) + 1
        if text is None or seen[text] <= SAME_CAPTION:
            kept.append(row)
    return kept


def _said(row: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a card or a line says of a pair."""
    better = facts["better_text"]
    if better is None and facts["better_text_id"] is not None:
        better = f"the caption of {facts['better_text_id']}"
    return {
        "id": words.name(row if facts["id"] is None else facts["id"]),
        "image": words.name(facts["image"] or ""),
        "text": None if facts["text"] is None else words.caption(facts["text"]),
        "better": None if better is None else words.caption(better),
        "score": _number(facts["mismatch_score"]),
        "rank_i2t": facts["rank_i2t"],
        "rank_t2i": facts["rank_t2i"],
    }


def _duplicates(rows: ReportRows, column: str, wrong: np.ndarray, thumbnails: Thumbnails) -> dict[str, Any]:
    """The largest groups of near-duplicates, each with a few of its pictures and its captions."""
    group_of = rows.numbers(column)
    grouped = np.flatnonzero(np.isfinite(group_of) & (group_of >= 0))
    names, member_of, sizes = np.unique(group_of[grouped], return_inverse=True, return_counts=True)
    largest = np.argsort(-sizes, kind="stable")[:DUPLICATE_GROUPS]
    members = {int(k): grouped[member_of == k] for k in largest}
    facts = rows.read(int(row) for part in members.values() for row in part[:GROUP_ROWS])
    shown = []
    for part in members.values():
        some = [int(row) for row in part[:GROUP_ROWS]]
        first_row = {facts[row]["image"] or row: row for row in reversed(some)}  # of each picture
        first = sorted(first_row.values())[:GROUP_PICTURES]
        shown.append(
            {
                "pairs": len(part),
                "wrong": int(wrong[part].sum()),
                "members": [{**_said(row, facts[row]), "picture": thumbnails(row)} for row in first],
            }
        )
    return {"groups": len(names), "pairs": len(grouped), "shown": shown}


def _problems(rows: ReportRows, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Every reason with its count, the most frequent first, and examples of pairs.

    The table's sentences say more than the summary's reasons; one that names none of them is an example apart.
    """
    found = rows.problems(EXAMPLES)
    reasons = {str(reason): _count(count, 0) for reason, count in counts.items()}
    if not reasons:
        reasons = {sentence: count for sentence, (count, _) in found.items()}
    order = sorted(reasons, key=lambda reason: -reasons[reason])
    examples: dict[str, list[int]] = {reason: [] for reason in order}
    apart: list[int] = []
    for sentence, (_, some) in found.items():
        examples.get(next((reason for reason in order if reason in sentence), ""), apart).extend(some)
    shown = {reason: examples[reason][:EXAMPLES] for reason in order[:REASONS]}
    facts = rows.read([*apart[:EXAMPLES_APART], *(row for some in shown.values() for row in some)])

    def said(some: Iterable[int]) -> list[dict[str, Any]]:
        return [{**_said(row, facts[row]), "problem": words.line(facts[row]["problem"])} for row in some]

    return {
        "total": sum(reasons.values()),
        "shown": [
            {"reason": words.line(reason), "count": reasons[reason], "examples": said(some)}
            for reason, some in shown.items()
        ],
        "more": len(order) - len(shown),
        "apart": said(apart[:EXAMPLES_APART]),
    }


def _read_summary(path: Path) -> Mapping[str, Any]:
    try:
        return _mapping(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}  # the table alone makes a page
    except ValueError as cause:
        raise DataError(f"{path} is not JSON ({cause}); run the audit again, or remove the file") from cause


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _share(value: object) -> float | None:
    number = _number(value)
    return None if number is None else min(max(number, 0.0), 1.0)


def _count(value: object, otherwise: int) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else otherwise
