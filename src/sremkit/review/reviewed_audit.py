"""An audit folder under review: rows by filter and order, their details, and the decisions on them."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from sremkit.audit.decisions import Action, Change, Decision, Decisions, PairKey
from sremkit.audit.report import clean
from sremkit.audit.result_table import IDENTITY, ResultTable, arrow, read_summary
from sremkit.errors import DataError, UserError
from sremkit.io import digest
from sremkit.review.scores import in_words, precision

Show = Literal["all", "flagged", "certain", "borderline", "not-flagged"]
Issue = Literal[
    "any",
    "same-caption",
    "same-image",
    "duplicate-row",
    "repeated-caption",
    "conflicting-captions",
    "boilerplate",
    "other-language",
    "image-issue",
    "problem",
]
Decided = Literal["any", "no", "yes", "keep", "drop", "edit", "accept"]
Order = Literal["lowest", "highest", "useful", "random", "row"]

MAX_ROWS = 200_000  # of a list that is sent to the browser
MAX_IN_MEMORY = 300_000  # rows; details of larger audits are read from the file for each page
MAX_CAPTION = 5000  # characters that are shown; longer captions cannot be edited here
SCORE = "match_probability"
#: A row has an issue where this column is not null.
ISSUE_COLUMNS = {
    "same-caption": "duplicate_text_group",
    "same-image": "duplicate_image_group",
    "duplicate-row": "duplicate_row_of",
    **{name: name.replace("-", "_") for name in get_args(Issue)[4:]},
}
CERTAIN, UNCERTAIN = 0.1, 0.9  # P(match) between these is borderline
BORDERLINE_RANKS = 0.05  # where scores are ranks: this fraction of the pairs on each side of the cutoff
#: What an issue column or an explanation of the audit says, by column.
REMARKS = {
    "unsupported_words": "words that captions of similar images do not have: {}",
    "duplicate_row_of": "caption of pair {}, and nearly its image",
    "repeated_caption": "{} unrelated images have this caption",
    "conflicting_captions": "captions of near-duplicate images say something else",
    "boilerplate": "boilerplate: {}",
    "other_language": "other language: {}",
    "image_issue": "{} image",
    "duplicate_text_group": "caption of group {} of equal captions",
    "duplicate_image_group": "image of group {} of near-duplicates",
}
DETAILS = (*IDENTITY, "rank_i2t", "rank_t2i", "better_text", "better_image", *REMARKS, "problem")


@dataclass(frozen=True)
class Filter:
    """Which rows to show, and in what order."""

    show: Show = "all"
    issue: Issue = "any"
    decided: Decided = "any"
    low: float = 0.0
    high: float = 1.0
    query: str = ""
    order: Order = "lowest"

    def __post_init__(self) -> None:
        for value, choices in ((self.show, Show), (self.issue, Issue), (self.decided, Decided), (self.order, Order)):
            if value not in get_args(choices):
                raise UserError(f"'{value}' is no such filter; choose from: {', '.join(get_args(choices))}")
        if not 0 <= self.low <= self.high <= 1:  # also refuses NaN
            raise UserError(f"the score range must lie between 0 and 1, got {self.low} to {self.high}")


class ReviewedAudit:
    """A finished audit, plain or sharded, and the decisions on its pairs."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UserError(f"{folder} does not exist; name the folder of a finished audit")
        self.folder = folder
        self.table = ResultTable(folder)
        self.summary = read_summary(folder)
        if not self.summary:
            raise DataError(f"the audit in {folder} is not finished; the same `srem audit` command continues it")
        missing = [name for name in (*IDENTITY, SCORE, "is_mismatch", "problem") if name not in self.table]
        if missing:
            raise DataError(
                f"{self.table.path} lacks columns that a review needs ({', '.join(missing)}); it was made by another "
                "version of sremkit, so make the audit again with `srem audit`"
            )
        self._state = self._read_state()
        self.score = self.table.numbers(SCORE)
        self.is_mismatch = self.table.flags("is_mismatch")
        self.is_label = self.table.is_present("reviewed")
        self.rank_only = self.summary.get("noise_rate", 0) is None
        self.decisions = Decisions(folder)
        self._seen = 0  # number of the last change that was read
        self._by_row: dict[int, Decision] = {}
        self._lock = threading.Lock()
        self._read_stored()

    def __len__(self) -> int:
        return len(self.score)

    @cached_property
    def key(self) -> str:
        """Another one for another audit, or for the same one made again."""
        return digest([str(self.folder.absolute()), *self._state])

    def check_unchanged(self) -> None:
        """Refuse to go on when the audit was made again since it was opened."""
        if self._read_state() != self._state:
            raise UserError(
                f"the audit in {self.folder} was made again or removed; stop `srem review` and start it anew"
            )

    @property
    def cutoff(self) -> float:
        """The highest score of a flagged pair; 0 if none is flagged."""
        flagged = self.score[self.is_mismatch & np.isfinite(self.score)]
        return float(flagged.max()) if len(flagged) else 0.0

    def by_row(self) -> dict[int, Decision]:
        """The decision of each row that has one, with those of other processes."""
        with self._lock:
            for change in self.decisions.changes(self._seen):
                self._seen = change.number
                for row in self._rows_of(change):
                    if change.decision is None:
                        self._by_row.pop(row, None)
                    else:
                        self._by_row[row] = change.decision
            return dict(self._by_row)

    @property
    def version(self) -> int:
        """The number of the last change that `by_row` has read."""
        return self._seen

    def changes(self, since: int) -> list[Change]:
        """The changes after a number, one for each row of the changed pair."""
        changed = self.decisions.changes(since)
        return [change._replace(row=row) for change in changed for row in self._rows_of(change)]

    def decide(self, row: int, action: Action | None, text: str | None, *, client: str) -> Change:
        """Store the decision on a row; None removes it. The text is a new caption."""
        details = self._read_row(row)
        if details["problem"] is not None:
            raise UserError("this row could not be read, so an export leaves it out anyway")
        decision = None
        if action == "accept":
            text = details["better_text"]
            if text is None:
                raise UserError("no caption is suggested for this pair; edit the caption or drop the pair")
        if action is not None:
            decision = Decision(action, text if action in ("edit", "accept") else None)
        pair = PairKey(*(details[name] for name in IDENTITY))
        self._rows_of_key.setdefault(pair.key, [row])
        return self.decisions.decide(pair, row, decision, client=client)

    def undo(self, client: str) -> Change | None:
        """Take back the latest change of a client; None if there is none."""
        change = self.decisions.undo(client)
        if change is None:
            return None
        rows = self._rows_of(change)  # the stored number may be that of an earlier audit
        return change._replace(row=rows[0]) if rows else change

    def rows(self, chosen: Filter) -> np.ndarray:
        """The rows of a filter in its order, (k,) int64."""
        score, by_row = self.score, self.by_row()
        keep = np.ones(len(self), dtype=bool)
        known = np.isfinite(score)
        if chosen.show == "flagged":
            keep &= self.is_mismatch
        elif chosen.show == "not-flagged":
            keep &= ~self.is_mismatch & known
        elif chosen.show == "borderline":
            keep &= self.is_borderline
        elif chosen.show == "certain":
            keep &= self.is_mismatch & ~self.is_borderline
        if chosen.issue != "any":
            column = ISSUE_COLUMNS[chosen.issue]
            keep &= self.table.is_present(column)
        if (chosen.low, chosen.high) != (0.0, 1.0):
            keep &= known & (score >= chosen.low) & (score <= chosen.high)
        if chosen.decided != "any":
            some = [row for row, d in by_row.items() if chosen.decided in ("yes", "no") or d.action == chosen.decided]
            is_decided = np.zeros(len(self), dtype=bool)
            is_decided[some] = True
            keep &= ~is_decided if chosen.decided == "no" else is_decided
        if chosen.query.strip():
            keep &= self._contains(chosen.query.strip())
        rows = np.flatnonzero(keep)
        return rows[self._order(rows, chosen.order)]

    def details(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """What the browser shows of these rows."""
        self._check(rows)
        by_row, found = self.by_row(), self._read_rows(rows, DETAILS)
        return [self._describe(row, found[row], by_row.get(row)) for row in rows]

    def image_name(self, row: int, *, better: bool = False) -> tuple[int, str | None]:
        """A row with the image to show, and the image's name: the row's own, or that of the image that fits better."""
        column = "better_image" if better else "image"
        name = self._read_row(row, (column,))[column]
        if not better or name is None:
            return row, name
        place = arrow("pyarrow.compute").index(self._texts["image"], name).as_py()
        return (row, None) if place < 0 else (place, name)

    def progress(self) -> dict[str, Any]:
        """Counts of decisions, and the precision of the audit among them."""
        by_row = self.by_row()
        actions = [decision.action for decision in by_row.values()]
        # Pairs that the audit knew as labels say nothing about its precision.
        unseen = ((decision, bool(self.is_mismatch[row])) for row, decision in by_row.items() if not self.is_label[row])
        found = precision(unseen)
        flagged = int(self.is_mismatch.sum())
        return {
            "decided": len(by_row),
            "actions": {action: actions.count(action) for action in dict.fromkeys(actions)},
            "flagged": flagged,
            "flagged_decided": sum(bool(self.is_mismatch[row]) for row in by_row),
            "precision": found._asdict(),
        }

    @cached_property
    def is_borderline(self) -> np.ndarray:
        """(n,) bool: pairs that could be either; where scores are ranks, those next to the cutoff."""
        score = np.nan_to_num(self.score, nan=2.0)
        low, high = CERTAIN, UNCERTAIN
        if self.rank_only:
            low, high = self.cutoff - BORDERLINE_RANKS, self.cutoff + BORDERLINE_RANKS
        return (score >= low) & (score <= high)

    @cached_property
    def _texts(self) -> Any:
        return self._details if len(self) <= MAX_IN_MEMORY else self.table.read(list(IDENTITY))

    @cached_property
    def _rows_of_key(self) -> dict[str, list[int]]:
        """The rows of pairs that have been decided on; filled by `_read_stored` and `decide`."""
        return {}

    def _read_stored(self) -> None:
        """Find the rows of stored decisions by id, image and caption: row numbers may have changed since."""
        stored = self.decisions.changes()
        places = sorted({change.row for change in stored if 0 <= change.row < len(self)})
        self._add_rows({change.pair for change in stored}, places)
        missing = {change.pair for change in stored} - self._rows_of_key.keys()
        if missing:
            self._add_rows(missing, range(len(self)))

    def _add_rows(self, keys: Set[str], places: Sequence[int]) -> None:
        """Remember which of the rows `places` are these pairs."""
        if not places:
            return
        part = self._texts if len(places) == len(self) else self._texts.take(list(places))
        columns = (part[name].to_pylist() for name in IDENTITY)
        for row, names in zip(places, zip(*columns, strict=True), strict=True):
            key = PairKey(*names).key
            if key in keys:
                self._rows_of_key.setdefault(key, []).append(row)

    def _rows_of(self, change: Change) -> list[int]:
        """The rows of a changed pair, which another process may have decided on first."""
        if change.pair not in self._rows_of_key:
            row, names = change.row, None
            if isinstance(row, int) and 0 <= row < len(self):
                names = PairKey(*(self._texts[name][row].as_py() for name in IDENTITY))
            self._rows_of_key[change.pair] = [row] if names is not None and names.key == change.pair else []
        return self._rows_of_key[change.pair]

    @cached_property
    def _details(self) -> Any:
        return self.table.read([name for name in DETAILS if name in self.table])

    def _read_rows(self, rows: Sequence[int], columns: Sequence[str]) -> dict[int, dict[str, Any]]:
        if len(self) > MAX_IN_MEMORY:
            return self.table.rows(rows, columns)
        known = [name for name in columns if name in self._details.column_names]
        found = self._details.select(known).take(list(rows)).to_pylist()
        return {row: {**dict.fromkeys(columns), **values} for row, values in zip(rows, found, strict=True)}

    def _read_row(self, row: int, columns: Sequence[str] = DETAILS) -> dict[str, Any]:
        self._check([row])
        return self._read_rows([row], columns)[row]

    def _read_state(self) -> tuple[int, int]:
        """Size and date of the table; zeros if it is gone."""
        try:
            state = self.table.path.stat()
        except OSError:
            return 0, 0
        return state.st_size, state.st_mtime_ns

    def _check(self, rows: Sequence[int]) -> None:
        if any(not 0 <= row < len(self) for row in rows):
            raise UserError(f"there is no such row; the audit has {len(self):,}")

    def _contains(self, query: str) -> np.ndarray:
        compute = arrow("pyarrow.compute")
        found = np.zeros(len(self), dtype=bool)
        for name in IDENTITY:
            column = compute.match_substring(self._texts[name], query, ignore_case=True)
            found |= column.fill_null(False).to_numpy()
        return found

    def _order(self, rows: np.ndarray, order: Order) -> np.ndarray:
        score = np.where(np.isfinite(self.score[rows]), self.score[rows], 2.0)
        if order == "row":
            return np.arange(len(rows))
        if order == "highest":
            return np.lexsort((rows, np.where(score > 1, 2.0, -score)))
        if order == "useful":  # the nearest to the cutoff
            distance = np.abs(logit(score) - logit(np.array(self.cutoff or 0.5)))
            return np.lexsort((rows, np.where(score > 1, np.inf, distance)))
        if order == "random":  # the same in every list
            return np.argsort(np.random.default_rng(0).permutation(len(self))[rows])
        return np.lexsort((rows, score))

    def _describe(self, row: int, found: dict[str, Any], decision: Decision | None) -> dict[str, Any]:
        score = None if math.isnan(self.score[row]) else float(self.score[row])
        text = found["text"]
        return {
            "row": row,
            "id": None if found["id"] is None else clean(found["id"]),
            "image": clean(found["image"] or ""),
            "text": None if text is None else clean(text)[:MAX_CAPTION],
            "left_out": 0 if text is None else max(len(text) - MAX_CAPTION, 0),
            "score": score,
            "words": in_words(score, rank_only=self.rank_only),
            "flagged": bool(self.is_mismatch[row]),
            "better_text": None if found["better_text"] is None else clean(found["better_text"])[:MAX_CAPTION],
            "better_image": found["better_image"] is not None,
            "ranks": [found["rank_i2t"], found["rank_t2i"]],
            "remarks": remarks(found),
            "problem": None if found["problem"] is None else clean(found["problem"])[:MAX_CAPTION],
            "decision": None if decision is None else decision._asdict(),
        }


def remarks(found: Mapping[str, Any]) -> list[str]:
    """What else the audit says of a row, by its details."""
    present = ((sentence, found[name]) for name, sentence in REMARKS.items() if found[name] is not None)
    return [sentence.format(clean(value)[:MAX_CAPTION]) for sentence, value in present]


def logit(p: np.ndarray) -> np.ndarray:
    """log p / (1 - p), of probabilities that are not 0 or 1."""
    bounded = np.clip(p, 1e-9, 1 - 1e-9)
    return np.log(bounded) - np.log1p(-bounded)
