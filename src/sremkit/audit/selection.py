"""The rows of an audit that an export writes, by verdict, cutoff, split and decisions, read in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sremkit.audit.decisions import Decision, PairKey, decisions_of
from sremkit.audit.result_table import IDENTITY, ResultTable, arrow, as_floats, with_column
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

Select = Literal["keep", "drop", "all"]
VERDICT_COLUMN = "_verdict"  # computed: "keep", "mismatch" or "unusable", by the cutoff and the decisions


class Selection:
    """The rows of an audit's table that an export writes, read in chunks."""

    def __init__(
        self,
        table: ResultTable,
        select: Select,
        cutoff: CutoffRule | None = None,
        split: str | None = None,
        *,
        decisions: Mapping[str, Decision] | None = None,
        has_captions: bool = True,
    ) -> None:
        self.table = table
        self.decisions = decisions or {}
        self.has_captions = has_captions
        self.caption_columns = caption_columns(table)
        self.select = select
        self.split = split
        self.own: dict[str, str] = table.facts["own"]  # the user's columns -> their names in the table
        self.format = table.facts["source"].get("format")
        if split is not None and "split" not in self.own:
            raise UserError("these pairs have no column 'split'; leave --split out")
        self._cutoff = None if cutoff is None else cutoff.cutoff(self._scores)
        self.decided = self.without_caption = 0
        self.usable = 0  # pairs with a score
        self.dropped = 0  # of them, those that are not kept
        self.dropped_wrong = 0.0  # expected mismatches among those
        self.filtered: dict[str, Any] | None = None  # facts that an export of the pairs to keep carries
        self.new_captions: dict[tuple[str, str], str] = {}  # by shard and key, in chunks with the column "shard"
        self.count = sum(len(chunk) for chunk in self.chunks(["id"]))
        self.formulas = False  # whether CSV cells may begin one
        self.left_out = 0  # rows that could not be written; counted by the writer

    def chunks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """These columns of the selected rows, and `VERDICT_COLUMN` where it is one of them, in chunks."""
        verdict = "is_mismatch" if self._cutoff is None else "match_probability"
        needed = ["problem", "match_probability", verdict, *([] if self.split is None else [self.own["split"]])]
        needed += IDENTITY if self.decisions else ()
        decided = without_caption = usable = dropped = 0
        dropped_wrong = 0.0
        needed = [name for name in dict.fromkeys((*columns, *needed)) if name != VERDICT_COLUMN]
        for chunk in self.table.chunks(needed):
            values = as_floats(chunk[verdict])  # NaN without a score
            is_mismatch = np.nan_to_num(values) == 1 if self._cutoff is None else values < self._cutoff
            is_usable = chunk["problem"].is_null().to_numpy()
            keep = is_usable & ~is_mismatch
            if self.decisions:
                found = self._decisions_in(chunk)
                decided += sum(decision is not None for decision in found)
                without_caption += sum(d is not None and d.text is not None and not self._replaces(d) for d in found)
                keeps = [None if d is None else d.action == "keep" or self._replaces(d) for d in found]
                overridden = np.array([kept is not None for kept in keeps]) & is_usable
                keep = np.where(overridden, np.array([kept is True for kept in keeps]), keep)
                chunk = self._with_new_captions(chunk, found)
            score = as_floats(chunk["match_probability"])
            is_scored = is_usable & np.isfinite(score)
            usable += int(is_scored.sum())
            dropped += int((is_scored & ~keep).sum())
            by_hand = keep == is_mismatch  # a decision has changed the verdict
            dropped_wrong += float(np.where(by_hand, 1.0, 1 - score)[is_scored & ~keep].sum())
            verdicts = np.where(is_usable, np.where(keep, "keep", "mismatch"), "unusable")
            chunk = chunk.append_column(VERDICT_COLUMN, arrow().array(verdicts))
            selected = {"keep": keep, "drop": ~keep, "all": np.ones_like(keep)}[self.select]
            if self.split is not None:
                splits = chunk[self.own["split"]].to_pylist()
                selected &= np.array([split == self.split for split in splits], dtype=bool)
            if selected.any():
                yield chunk.filter(arrow().array(selected)).select(columns)
        self.decided, self.without_caption = decided, without_caption
        self.usable, self.dropped, self.dropped_wrong = usable, dropped, dropped_wrong

    def _decisions_in(self, chunk: pa.Table) -> list[Decision | None]:
        rows = zip(*(chunk[name].to_pylist() for name in IDENTITY), strict=True)
        return decisions_of((PairKey(*row) for row in rows), self.decisions)

    def _replaces(self, decision: Decision) -> bool:
        return decision.text is not None and self.has_captions

    def _with_new_captions(self, chunk: pa.Table, decisions: list[Decision | None]) -> pa.Table:
        """Replace the captions that have new ones, in our column and in the user's."""
        if not any(decision is not None and decision.text is not None for decision in decisions):
            return chunk
        for name in dict.fromkeys(("text", *self.caption_columns)):
            if name in chunk.column_names:
                pairs = zip(chunk[name].to_pylist(), decisions, strict=True)
                texts = [old if new is None or new.text is None else new.text for old, new in pairs]
                chunk = with_column(chunk, name, arrow().array(texts, type=chunk.schema.field(name).type))
        if "shard" in chunk.column_names:
            keys = zip(chunk["shard"].to_pylist(), chunk["id"].to_pylist(), decisions, strict=True)
            self.new_captions |= {(shard, key): d.text for shard, key, d in keys if d is not None and d.text}
        return chunk

    def values(self, column: str) -> Iterator[Any]:
        """The values of one column, one by one."""
        for chunk in self.chunks([column]):
            yield from chunk[column].to_pylist()

    def _scores(self) -> Iterator[np.ndarray]:
        for chunk in self.table.chunks(["match_probability"]):
            score = as_floats(chunk["match_probability"])
            yield score[np.isfinite(score)]


def caption_columns(table: ResultTable) -> list[str]:
    """The stored names of the user's columns of captions; in tables of older versions, those that equal ours."""
    own = table.facts["own"]
    if "roles" in table.facts:
        column = table.facts["roles"].get("text")
        return [own[column]] if column in own else []
    pa = arrow()
    names = [own[n] for n in own if own[n] != "text" and pa.types.is_string(table.schema.field(own[n]).type)]
    first = next(table.chunks(["text", *names], 1000), None)
    if first is None:
        return []
    texts = first["text"].to_pylist()
    return [name for name in names if [t and t.strip() for t in first[name].to_pylist()] == texts]
