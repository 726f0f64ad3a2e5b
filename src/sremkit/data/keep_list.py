"""Keep-lists: the ids of the pairs worth training on, one a line, so that no data need be rewritten."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sremkit.data.pairs import Pairs, Problems
from sremkit.data.text_files import read_lines
from sremkit.errors import DataError


def read_keep_list(path: str | Path) -> list[str]:
    """The ids in a keep-list; blank lines are passed over."""
    ids = [line.strip() for line in read_lines(Path(path), Problems("raise")) if line and line.strip()]
    if not ids:
        raise DataError(f"{path} holds no ids; write one a line, or make it with `srem export`")
    return ids


def keep_list_lines(ids: Iterable[str]) -> Iterable[str]:
    """The lines of a keep-list; an id that would not come back from its line is refused."""
    for pair_id in ids:
        if "\n" in pair_id or "\r" in pair_id or pair_id != pair_id.strip() or not pair_id:
            raise DataError(
                f"the id {pair_id!r:.80} cannot stand on a line of its own; choose another id column, "
                "or export the pairs themselves as CSV or Parquet"
            )
        yield f"{pair_id}\n"


def keep_only(pairs: Pairs, path: str | Path) -> Pairs:
    """The pairs whose ids are in the keep-list at `path`, in their own order."""
    wanted = set(read_keep_list(path))
    strangers = wanted.difference(pairs.pair_ids)
    if strangers:
        raise DataError(
            f"{len(strangers):,} of the {len(wanted):,} ids in {path} match no pair of {pairs.name} "
            f"({pairs.split}), such as '{min(strangers)}'; its ids look like '{pairs.pair_ids[0]}'. Make the "
            "list from the same data and the same split (`srem export --split train`)"
        )
    return pairs.select(np.array([k for k, pair_id in enumerate(pairs.pair_ids) if pair_id in wanted]))
