"""The report of an audit: one HTML page that loads nothing and stays small whatever the data."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sremkit.audit.neighbors import NEIGHBORS
from sremkit.audit.result_table import ROW_GROUP_SIZE, ResultTable, arrow, read_summary
from sremkit.errors import DataError
from sremkit.io import atomic_write
from sremkit.reports.figures import line_chart, stacked_histogram
from sremkit.reports.page import image_uri, render

if TYPE_CHECKING:
    from PIL.Image import Image

# Everything on the page is bounded, so that it stays under 15 MB. The text of all cards, if it is as long as
# possible and every character has to be escaped, takes about 3 MB.
MAX_IMAGE_BYTES = 8_000_000
MAX_LIST_BYTES = 3_000_000  # of the list of all flagged pairs, about 6,000 of them,
MAX_LIST_IMAGES = 300  # the first of which have an image
LIST_OVERHEAD = 420  # bytes of markup of a pair in the list
LARGE_SIDE, SMALL_SIDE, LIST_SIDE = 320, 160, 80  # pixels: of cards, which can be enlarged, others, the list
MAX_LOWEST, SHOWN_LOWEST, MAX_BORDERLINE = 48, 12, 9
MAX_SAME_CAPTION = 2  # cards of one caption, which may belong to a thousand images
MAX_GROUPS, MAX_GROUP_IMAGES, MAX_GROUP_ROWS = 9, 6, 60
MAX_REASONS, MAX_EXAMPLES, MAX_OTHER_EXAMPLES = 20, 3, 12
MAX_DISTINCT_PROBLEMS = 1000  # messages may name the file, so there may be as many as pairs
SHORT_CAPTION, LONG_CAPTION = 180, 3000  # characters, the second of a caption that is expanded
MAX_NAME, MAX_LINE, MAX_SETTINGS = 120, 300, 80  # characters of an id and of a message; number of settings
CARD_COLUMNS = ("id", "image", "text", "match_probability", "rank_i2t", "rank_t2i", "better_text", "better_text_id",
                "better_image", *NEIGHBORS, "problem")  # fmt: skip
SOURCES_IN_MEMORY = ("frame", "dataset", "embeddings", "pairs", "run")
ISSUE_TITLES = {
    "repeated_caption": "One caption on many unrelated images",
    "conflicting_captions": "Near-duplicate images with conflicting captions",
    "duplicate_row_of": "Rows that repeat an earlier one",
    "boilerplate": "Boilerplate captions",
    "other_language": "Captions in another language or script",
    "image_issue": "Tiny or blank images",
}


def write_report(folder: Path, *, image_of: Callable[[int], Image | None] | None, out: Path | None = None) -> Path:
    """Write the page of a finished audit and return its path, by default `report.html` in the folder.

    Args:
        folder: holds `pairs.parquet` and `summary.json`; of the table any column may be missing.
        image_of: returns the image of a row of `pairs.parquet`, or None; without it the page has no images.
    """
    folder = Path(folder)
    table, summary = ResultTable(folder), read_summary(folder)
    thumbnails = Thumbnails(image_of)
    score, flagged = table.numbers("match_probability"), table.flags("is_mismatch")
    numbers = _numbers(summary, score, flagged)
    cards = _cards(table, score, flagged, thumbnails)
    page = render(
        "audit.html",
        title=shorten_name(Path(str(_mapping(summary.get("source")).get("path") or folder.resolve())).name),
        numbers=numbers,
        figures=_figures(summary, score, flagged, numbers),
        issues=_issues(table, _mapping(summary.get("issues"))),
        folder=shlex.quote(clean(folder)),
        features_command=_features_command(_mapping(summary.get("source")), folder),
        training=_training(_mapping(summary.get("training"))),
        has_images=image_of is not None,
        shown_lowest=SHOWN_LOWEST,
        **cards,
        listed=_list_flagged(table, score, flagged, thumbnails, shown=len(cards["lowest"])),
        same_captions=_duplicates(table, "duplicate_text_group", flagged, thumbnails),
        same_images=_duplicates(table, "duplicate_image_group", flagged, thumbnails),
        problems=_problems(table, _mapping(summary.get("problems"))),
        cutoff=list_settings(_mapping(summary.get("cutoff"))),
        settings=list_settings({key: summary[key] for key in summary if key in ("source", "settings", "versions")}),
        seconds=list_settings(_mapping(summary.get("seconds"))),
    )
    target = folder / "report.html" if out is None else Path(out)
    atomic_write(target, page)
    return target


class Thumbnails:
    """Thumbnails by row, until the page is full."""

    def __init__(self, image_of: Callable[[int], Image | None] | None) -> None:
        self._image_of = image_of
        self._images: dict[int, Image | None] = {}  # shrunk, so that each is read once
        self._made: dict[tuple[int, int], str] = {}  # by row and side
        self._bytes_left = MAX_IMAGE_BYTES

    def __call__(self, row: int, side: int = SMALL_SIDE) -> str | None:
        if row not in self._images:
            self._images[row] = self._read(row)
        image = self._images[row]
        if image is None or self._bytes_left <= 0:
            return None
        if (row, side) not in self._made:
            self._made[row, side] = image_uri(image, side=side)
        data = self._made[row, side]
        if len(data) > self._bytes_left:
            return None
        self._bytes_left -= len(data)  # also the second time: the page then holds it twice
        return data

    def _read(self, row: int) -> Image | None:
        try:
            image = None if self._image_of is None else self._image_of(row)
            if image is not None:
                image = image.convert("RGB")
                image.thumbnail((LARGE_SIDE, LARGE_SIDE))
            return image
        except (DataError, OSError):  # the file may have been removed since; the page is still of use
            return None


def _numbers(summary: Mapping[str, Any], score: np.ndarray, flagged: np.ndarray) -> dict[str, Any]:
    """The counts at the top of the page: those of the summary, else counted from the table."""
    rate = {key: _fraction(value) for key, value in _mapping(summary.get("noise_rate")).items()}
    remaining, near = _mapping(summary.get("remaining")), _mapping(summary.get("near_mismatches"))
    kept = _count(remaining.get("kept"), 0)
    of_kept = {key: _fraction((_number(remaining.get(key)) or 0.0) / kept) for key in ("wrong", "low", "high") if kept}
    scored = _count(summary.get("scored"), int(np.isfinite(score).sum()))
    num_flagged = _count(summary.get("mismatches"), int(flagged.sum()))
    precision, estimate = _number(summary.get("expected_precision")), rate.get("estimate")
    missed = None if precision is None or estimate is None else max(estimate * scored - precision * num_flagged, 0)
    return {
        "pairs": _count(summary.get("pairs"), len(score)),
        "scored": scored,
        "flagged": num_flagged,
        "missed": missed,  # mismatches that are not flagged, as the noise rate and the expected precision say
        "remaining": of_kept.get("wrong"),  # fraction of mismatches among the pairs that are kept
        "remaining_low": of_kept.get("low"),
        "remaining_high": of_kept.get("high"),
        "remaining_sentence": clean(remaining.get("sentence") or "")[:LONG_CAPTION],
        "rate_counts": clean(summary.get("rate_counts") or "")[:LONG_CAPTION],  # what the rate counts, in words
        "rank_only": summary.get("noise_rate", rate) is None,  # the scores are ranks, not probabilities
        "rate": rate.get("estimate"),
        "low": rate.get("low"),
        "high": rate.get("high"),
        # Of the rate of all mismatches, where these vectors cannot tell near ones from right pairs.
        "high_with_near": None if near.get("can_tell", True) else _fraction(near.get("high")),
        "expected_precision": _number(summary.get("expected_precision")),
        "candidates": _number(summary.get("candidates")),
        "threshold": _fraction(summary.get("threshold")),
        "note": clean(summary.get("note") or "")[:LONG_CAPTION],
    }


def _figures(
    summary: Mapping[str, Any], score: np.ndarray, flagged: np.ndarray, numbers: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Match probabilities with the cutoff; pairs against random negatives; precision and recall over the threshold."""
    finite = np.isfinite(score)
    if numbers["rank_only"] or not finite.any():  # a histogram of ranks is always flat
        return []
    cutoff = numbers["threshold"] if flagged.any() else None
    label = "" if cutoff is None else f"cutoff {cutoff:.3f}"
    groups = {"bar-wrong": score[finite & flagged], "bar-right": score[finite & ~flagged]}
    bad, good = (f"{len(group):,}" for group in groups.values())
    title = f"Histogram of match_probability: {bad} pairs flagged, {good} not, median {np.median(score[finite]):.3g}"
    svg = stacked_histogram(
        groups, limits=(0.0, 1.0), xlabel="match_probability", title=title, cutoff=cutoff, cutoff_label=label
    )
    explanation = "1: the pair matches for certain. 0: it is a certain mismatch. Dashed: the cutoff."
    figures = [{"name": "Match probability", "svg": svg, "explanation": explanation}]
    separation, curve = _mapping(summary.get("separation")), _mapping(summary.get("curve"))
    if separation:
        edges = np.array(separation["edges"], dtype=np.float64)
        middle = (edges[1:] + edges[:-1]) / 2
        lines = {"line-right": separation["given"], "line-null": separation["negatives"]}
        place = None if cutoff is None else float(np.interp(cutoff, separation["match_probability"], edges))
        title = "Pairs against random negatives"
        svg = line_chart(middle, lines, xlabel="match statistic", title=title, cutoff=place)
        explanation = (
            "Solid: your pairs. Dotted: random pairs of the same images and captions, which mismatch. Two separate "
            "modes of the solid line, one of them over the dotted line: the verdicts are clear. Dashed: the cutoff."
        )
        figures.append({"name": "Pairs against random negatives", "svg": svg, "explanation": explanation})
    if curve:
        precision = [math.nan if value is None else value for value in curve["expected_precision"]]
        lines = {"line-right": precision, "line-null": curve["expected_recall"]}
        svg = line_chart(
            np.array(curve["threshold"]),
            lines,
            xlabel="threshold",
            title="Precision and recall",
            cutoff=cutoff,
            cutoff_label=label,
        )
        explanation = (
            "Solid: expected precision, the fraction of mismatches among the flagged pairs. Dotted: expected recall, "
            "the fraction of all mismatches that are flagged. Dashed: the cutoff."
        )
        figures.append({"name": "Which threshold?", "svg": svg, "explanation": explanation})
    return figures


def _issues(table: ResultTable, counts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each issue that some pair has: its title, the number of pairs, and examples."""
    found = []
    for name, title in ISSUE_TITLES.items():
        rows: list[int] = []
        count = 0
        for start, values in _chunks(table, name):
            here = np.flatnonzero(values.is_valid())
            count += len(here)
            rows += [start + int(row) for row in here[: MAX_OTHER_EXAMPLES - len(rows)]]
        if count:
            facts = table.rows(rows, (*CARD_COLUMNS, name))
            examples = [{**_describe(row, facts[row]), "value": shorten_name(facts[row][name])} for row in rows]
            number = _count(counts.get(name), count)
            found.append({"name": name, "title": title, "count": number, "examples": examples})
    return found


def _cards(
    table: ResultTable, score: np.ndarray, flagged: np.ndarray, thumbnails: Thumbnails
) -> dict[str, list[dict[str, Any]]]:
    """The pairs with the lowest scores, and those on both sides of the cutoff."""
    energy = np.nan_to_num(table.numbers("energy_i2t")) + np.nan_to_num(table.numbers("energy_t2i"))
    scored = np.isfinite(score)
    order = np.lexsort((-energy, np.where(scored, score, np.inf)))  # among equal scores high energy first
    bad, good = order[flagged[order] & scored[order]], order[~flagged[order] & scored[order]]
    candidates, edge = bad[: 4 * MAX_LOWEST].tolist(), bad[-MAX_BORDERLINE:][::-1].tolist()
    just_right = good[:MAX_BORDERLINE].tolist()
    facts = table.rows([*candidates, *edge, *just_right], CARD_COLUMNS)
    lowest = _without_repeats(candidates, facts)[:MAX_LOWEST]
    just_wrong = [row for row in edge if row not in lowest]
    better_images = {facts[row][name] for row in (*lowest, *just_wrong) for name in ("better_image", "neighbor_image")}
    better_images -= {None}
    row_of_image = _first_rows(table, "image", better_images)

    def card(row: int) -> dict[str, Any]:
        thumbnail, better = thumbnails(row, LARGE_SIDE), row_of_image.get(facts[row]["better_image"])
        better_thumbnail = None if better is None else thumbnails(better)
        # The image of the nearest right caption, where no image fits the caption better.
        near = row_of_image.get(facts[row]["neighbor_image"]) if better is None else None
        return {
            **_describe(row, facts[row]),
            "thumbnail": thumbnail,
            "better_thumbnail": better_thumbnail,
            "neighbor_thumbnail": None if near is None else thumbnails(near),
        }

    sections = {"lowest": lowest, "just_wrong": just_wrong, "just_right": just_right}
    return {name: [card(row) for row in rows] for name, rows in sections.items()}


def _list_flagged(
    table: ResultTable, score: np.ndarray, flagged: np.ndarray, thumbnails: Thumbnails, *, shown: int
) -> dict[str, Any]:
    """Every flagged pair in short, the lowest score first, as long as there is room; and its place in other orders.

    None is listed where the page shows them all as cards.
    """
    rows = np.flatnonzero(flagged & np.isfinite(score))
    rows = rows[np.argsort(score[rows], kind="stable")][: MAX_LIST_BYTES // LIST_OVERHEAD]
    rows = rows if len(rows) > shown else rows[:0]
    facts = table.rows(rows.tolist(), CARD_COLUMNS)
    listed: list[dict[str, Any]] = []
    room = MAX_LIST_BYTES
    for row in rows.tolist():
        entry = _describe(row, facts[row])
        for name in ("text", "better", "neighbor"):
            entry[name] = entry[name] and entry[name].short
        texts = [entry[name] or "" for name in ("id", "image", "text", "better", "neighbor", "words")]
        room -= LIST_OVERHEAD + sum(len(escape(text).encode()) for text in texts)
        if room < 0:
            break
        listed.append(entry)
    for number, entry in enumerate(listed):
        entry["thumbnail"] = thumbnails(int(rows[number]), LIST_SIDE) if number < MAX_LIST_IMAGES else None
    for name, key in (("by_id", "id"), ("by_text", "text")):
        order = sorted(range(len(listed)), key=lambda k: (str(listed[k][key] or "").casefold(), k))
        for place, number in enumerate(order):
            listed[number][name] = place
    return {"pairs": listed, "total": int(flagged.sum())}


def _features_command(source: Mapping[str, Any], folder: Path) -> str | None:
    """The command that extracts features of the audited pairs; None for pairs that no file holds."""
    path, options = source.get("path"), _mapping(source.get("options"))
    if not isinstance(path, str) or source.get("format") in SOURCES_IN_MEMORY:
        return None
    words = ["srem", "features", path]
    for name in ("image", "text", "id", "image_root"):
        if isinstance(options.get(name), str):
            words += [f"--{name.replace('_', '-')}", options[name]]
    words += ["--reuse", str(folder), "-o", "features"]
    return clean(shlex.join(words))


def _training(training: Mapping[str, Any]) -> dict[str, Any] | None:
    """Recall with all pairs and with the kept ones, if the audit has compared them."""
    lines = []
    for name, label in (("all", "all pairs"), ("kept", "the kept pairs")):
        found = _mapping(training.get(name))
        columns = ("pairs", "rsum", "rsum_std", "i2t/R@1", "t2i/R@1")
        if any(_number(found.get(key)) is None for key in columns):
            return None
        lines.append({"label": label, **{key.replace("/R@", "_"): found[key] for key in columns}})
    counts = {key: _count(training.get(key), 0) for key in ("test_images", "test_pairs", "seeds")}
    return {"lines": lines, **counts}


def _without_repeats(rows: list[int], facts: Mapping[int, dict[str, Any]]) -> list[int]:
    """Leave out all but the first pairs of a caption."""
    seen = Counter[Any]()
    kept = []
    for row in rows:
        text = facts[row]["text"]
        seen[text] += 1
        if text is None or seen[text] <= MAX_SAME_CAPTION:
            kept.append(row)
    return kept


def _first_rows(table: ResultTable, column: str, values: set[str]) -> dict[str, int]:
    """The first row with each of these values in a column of strings."""
    pa, compute = arrow(), arrow("pyarrow.compute")
    wanted = pa.array(sorted(values), type=pa.string())
    found: dict[str, int] = {}
    for start, cells in _chunks(table, column) if values else ():
        texts = cells.cast(pa.string())
        for row in np.flatnonzero(compute.is_in(texts, value_set=wanted)).tolist():
            found.setdefault(texts[row].as_py(), start + row)
    return found


def _chunks(table: ResultTable, column: str) -> Iterator[tuple[int, Any]]:
    """The chunks of a column, each with the number of its first row; none if the table has no such column."""
    start = 0
    for chunk in table.chunks([column], ROW_GROUP_SIZE) if column in table else ():
        yield start, chunk[column]
        start += len(chunk)


def _describe(row: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a card or a line shows of a pair."""
    better = facts["better_text"]
    if better is None and facts["better_text_id"] is not None:
        better = f"the caption of {facts['better_text_id']}"
    return {
        "id": shorten_name(row if facts["id"] is None else facts["id"]),
        "image": shorten_name(facts["image"] or ""),
        "text": None if facts["text"] is None else shorten_caption(facts["text"]),
        "better": None if better is None else shorten_caption(better),
        "neighbor": None if facts["neighbor_text"] is None else shorten_caption(facts["neighbor_text"]),
        "words": None if facts["unsupported_words"] is None else shorten_line(facts["unsupported_words"]),
        "score": _number(facts["match_probability"]),
        "has_better_image": facts["better_image"] is not None,
        "rank_i2t": facts["rank_i2t"],
        "rank_t2i": facts["rank_t2i"],
    }


def _duplicates(table: ResultTable, column: str, flagged: np.ndarray, thumbnails: Thumbnails) -> dict[str, Any]:
    """The largest groups of near-duplicates, each with some of its images and captions."""
    group_of = table.numbers(column)
    grouped = np.flatnonzero(np.isfinite(group_of) & (group_of >= 0))
    names, member_of, sizes = np.unique(group_of[grouped], return_inverse=True, return_counts=True)
    largest = np.argsort(-sizes, kind="stable")[:MAX_GROUPS]
    groups = [grouped[member_of == k] for k in largest]
    facts = table.rows((int(row) for rows in groups for row in rows[:MAX_GROUP_ROWS]), CARD_COLUMNS)
    shown = []
    for rows in groups:
        first_row = {facts[int(k)]["image"] or int(k): int(k) for k in reversed(rows[:MAX_GROUP_ROWS])}
        members = sorted(first_row.values())[:MAX_GROUP_IMAGES]  # one for each image
        shown.append(
            {
                "pairs": len(rows),
                "flagged": int(flagged[rows].sum()),
                "members": [{**_describe(row, facts[row]), "thumbnail": thumbnails(row)} for row in members],
            }
        )
    return {"groups": len(names), "pairs": len(grouped), "shown": shown}


def _problems(table: ResultTable, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Every reason with its count, the most frequent first, and examples: messages of the table that contain it."""
    found = _find_problems(table)
    reasons = {str(reason): _count(count, 0) for reason, count in counts.items()}
    reasons = reasons or {message: count for message, (count, _) in found.items()}
    order = sorted(reasons, key=lambda reason: -reasons[reason])
    examples: dict[str, list[int]] = {reason: [] for reason in order}
    others: list[int] = []
    for message, (_, rows) in found.items():
        examples.get(next((reason for reason in order if reason in message), ""), others).extend(rows)
    shown = {reason: examples[reason][:MAX_EXAMPLES] for reason in order[:MAX_REASONS]}
    others = others[:MAX_OTHER_EXAMPLES]
    facts = table.rows([*others, *(row for rows in shown.values() for row in rows)], CARD_COLUMNS)

    def describe(rows: Iterable[int]) -> list[dict[str, Any]]:
        return [{**_describe(row, facts[row]), "problem": shorten_line(facts[row]["problem"])} for row in rows]

    return {
        "total": sum(reasons.values()),
        "shown": [
            {"reason": shorten_line(reason), "count": reasons[reason], "examples": describe(rows)}
            for reason, rows in shown.items()
        ],
        "more": len(order) - len(shown),
        "others": describe(others),
    }


def _find_problems(table: ResultTable) -> dict[str, tuple[int, list[int]]]:
    """Each distinct message, with the number of pairs and the first rows."""
    found: dict[str, tuple[int, list[int]]] = {}
    for start, messages in _chunks(table, "problem"):
        for row in np.flatnonzero(messages.is_valid()).tolist():
            message = str(messages[row].as_py())
            if message not in found and len(found) >= MAX_DISTINCT_PROBLEMS:
                message = "other problems"
            count, rows = found.get(message, (0, []))
            found[message] = (count + 1, [*rows, start + row] if len(rows) < MAX_EXAMPLES else rows)
    return found


class Caption(NamedTuple):
    """A caption that is shown shortened and can be expanded."""

    short: str
    whole: str  # empty if `short` is all of it
    left_out: int  # characters that `whole` does not show


def shorten_caption(value: object) -> Caption:
    """A caption as one paragraph."""
    text = " ".join(clean(value).split())
    if len(text) <= SHORT_CAPTION:
        return Caption(text, "", 0)
    short = text[: SHORT_CAPTION - 20].rstrip() + " …"
    return Caption(short, text[:LONG_CAPTION], max(0, len(text) - LONG_CAPTION))


def shorten_name(value: object) -> str:
    """An id or a file name; of a long one the end, which says more."""
    text = clean(value)
    return text if len(text) <= MAX_NAME else "…" + text[-MAX_NAME:]


def shorten_line(value: object) -> str:
    """A message."""
    text = clean(value)
    return text if len(text) <= MAX_LINE else text[:MAX_LINE] + " …"


def list_settings(nested: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names and values: {"a": {"b": 1}} is a.b and 1."""
    lines: list[tuple[str, str]] = []
    for key, value in nested.items():
        if isinstance(value, Mapping):
            lines += list_settings(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            lines.append((shorten_name(f"{prefix}{key}"), shorten_line(text)))
    return lines[:MAX_SETTINGS]


def clean(value: object) -> str:
    """Replace control characters, which HTML does not allow, and lone surrogates. The template escapes."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", str(value))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _fraction(value: object) -> float | None:
    number = _number(value)
    return None if number is None else min(max(number, 0.0), 1.0)


def _count(value: object, otherwise: int) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else otherwise
