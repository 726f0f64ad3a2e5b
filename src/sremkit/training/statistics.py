"""What the objective said of each pair in the current epoch, kept by pair and written as Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sremkit.extras import require
from sremkit.objectives import Loss, Terms

COLUMNS = ("energy_i2t", "energy_t2i", "clean_i2t", "clean_t2i", "weight_i2t", "weight_t2i")


class PairStatistics:
    """One row a pair; NaN where the epoch has not come by yet. Stays on the device until it is asked for."""

    def __init__(self, pair_ids: Sequence[str], device: torch.device) -> None:
        self.pair_ids = pair_ids
        self.device = device
        self._id_column: Any = None  # made once, with the first file: the ids are the same in all of them
        self.clear()

    def clear(self) -> None:
        self.table = torch.full((len(self.pair_ids), len(COLUMNS)), float("nan"), device=self.device)
        self.seen = False

    def update(self, pair_id: Tensor, terms: Loss) -> None:
        """Enter one batch; methods without such statistics leave the table empty."""
        if not isinstance(terms, Terms):
            return
        rows = torch.stack([getattr(terms, column).float() for column in COLUMNS], dim=1)  # (b, 6)
        self.table[pair_id] = rows
        self.seen = True

    def state_dict(self) -> dict[str, Tensor]:
        return {"table": self.table} if self.seen else {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.clear()
        if state:
            self.table = state["table"].to(self.device)
            self.seen = True

    def write_epoch(self, folder: Path, epoch: int, *, keep: int) -> None:
        """Write the table of this epoch, and drop all but the last `keep` of the folder."""
        if keep > 0:
            self.write(folder / f"epoch-{epoch:03d}.parquet")
        files = sorted(folder.glob("epoch-*.parquet"))
        for old in files[: max(len(files) - keep, 0)]:
            old.unlink()

    def write(self, path: Path) -> None:
        """Write the table as Parquet, in one step; the column `clean` holds truth values again."""
        if not self.seen:
            return
        pyarrow = require("pyarrow", extra="train", purpose="write per-pair statistics")
        parquet = require("pyarrow.parquet", extra="train", purpose="write per-pair statistics")
        if self._id_column is None:
            self._id_column = pyarrow.array(list(self.pair_ids), pyarrow.string())
        columns = dict(zip(COLUMNS, self.table.cpu().unbind(1), strict=True))
        arrays = {"pair_id": self._id_column}
        for name, column in columns.items():
            arrays[name] = pyarrow.array(column.numpy(), from_pandas=True)  # NaN becomes "unknown"
            if name.startswith("clean"):
                arrays[name] = arrays[name].cast(pyarrow.bool_())
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".partial-{path.name}")
        parquet.write_table(pyarrow.table(arrays), partial)
        partial.replace(path)
