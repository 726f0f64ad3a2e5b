"""Metrics of steps and epochs, and statistics of each pair. Nothing here waits for the device during a step."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.extras import require
from sremkit.io import atomic_write
from sremkit.models.layers.masking import masked_mean
from sremkit.objectives import Loss
from sremkit.objectives.terms import PairReport, both_directions
from sremkit.training.diagnostics import MAX_LOSS, DivergedError, divergence_message
from sremkit.training.run_folder import RunFolder

COLUMNS = ("energy_i2t", "energy_t2i", "clean_i2t", "clean_t2i", "weight_i2t", "weight_t2i")


Observed = tuple[Batch, Loss, Tensor | None]  # what an observer sees of a step


class StepValues(NamedTuple):
    """The metrics of a step, on the device."""

    pair_id: Tensor  # (b,) of all processes
    names: tuple[str, ...]
    values: Tensor  # (names,) float32
    unobserved: Observed | None = None  # for an observer that cannot be part of a CUDA graph

    @classmethod
    def of(cls, pair_id: Tensor, metrics: dict[str, Tensor], unobserved: Observed | None = None) -> StepValues:
        values = torch.stack([value.detach().float() for value in metrics.values()])
        return cls(pair_id, tuple(metrics), values, unobserved)


class StepMetrics:
    """The loss and its parts of the last step, read while the next one is computed. The loss is the first entry."""

    def __init__(self, pair_ids: Sequence[str], folder: RunFolder | None) -> None:
        self._pair_ids = pair_ids
        self._folder = folder
        #: Step, ids of its pairs, names, values (names,) on the host, and when they have been copied from a GPU.
        self._pending: tuple[int, Tensor, tuple[str, ...], Tensor, torch.cuda.Event | None] | None = None

    def put(self, step: int, pair_id: Tensor, metrics: StepValues) -> None:
        """Keep the metrics of this step, copied; those of the step before must have been read."""
        on_gpu = metrics.values.is_cuda
        values = torch.empty(metrics.values.shape, dtype=metrics.values.dtype, pin_memory=on_gpu)
        values.copy_(metrics.values, non_blocking=True)
        copied = None
        if on_gpu:  # reading waits for this copy, and not for a step that was launched after it
            copied = torch.cuda.Event()
            copied.record()
        self._pending = (step, pair_id, metrics.names, values, copied)

    def add_to(self, sums: dict[str, float]) -> None:
        """Add the pending metrics to these sums, if there are any; raise if the loss has diverged."""
        if self._pending is None:
            return
        (step, pair_id, names, on_host, copied), self._pending = self._pending, None
        if copied is not None:
            copied.synchronize()
        values = on_host.tolist()
        if not math.isfinite(values[0]) or abs(values[0]) > MAX_LOSS:
            ids = [str(self._pair_ids[row]) for row in pair_id.tolist()]
            raise DivergedError(divergence_message(step, values[0], ids, self._folder))
        for name, value in zip(names, values, strict=True):
            sums[name] = sums.get(name, 0.0) + value


def selection_metrics(report: PairReport | None) -> dict[str, Tensor]:
    """The share of pairs that a method selected, and the mean weight of the selected ones; 0 where there are none."""
    if report is None or report.clean is None:
        return {}
    clean = both_directions(report.clean)
    metrics = {"selected_i2t": clean[0].float().mean(), "selected_t2i": clean[1].float().mean()}
    if report.weight is not None:
        # A swapped weight is used by the loss of the other direction.
        weight, used_by = both_directions(report.weight), clean[::-1] if report.swapped else clean
        metrics["weight_i2t"] = masked_mean(weight[0], used_by[0], dim=0)
        metrics["weight_t2i"] = masked_mean(weight[1], used_by[1], dim=0)
    return metrics


class PairStatistics:
    """What the method reported of each pair in the current epoch: one row per pair, NaN before its batch."""

    def __init__(self, pair_ids: Sequence[str], device: torch.device) -> None:
        self.pair_ids = pair_ids
        self.device = device
        self._id_column: Any = None  # built for the first file: the ids are the same in all of them
        self.table = torch.full((len(pair_ids), len(COLUMNS)), float("nan"), device=device)

    def clear(self) -> None:
        self.table.fill_(float("nan"))

    def is_empty(self) -> bool:
        """Whether nothing was reported of any pair."""
        return bool(self.table.isnan().all())

    def update(self, pair_id: Tensor, report: PairReport | None) -> None:
        """Add one batch, in place, so that CUDA graphs can replay it; without a report the table stays empty."""
        if report is None:
            return
        unknown = torch.full(pair_id.shape, float("nan"), device=self.device)
        fields = (report.energy, report.clean, report.weight)
        columns = [c for field in fields for c in both_directions(unknown if field is None else field)]
        self.table[pair_id] = torch.stack([column.float() for column in columns], dim=1)  # (b, 6)

    def state_dict(self) -> dict[str, Tensor]:
        return {} if self.is_empty() else {"table": self.table}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.clear()
        if state:
            self.table.copy_(state["table"])

    def write_epoch(self, folder: Path, epoch: int, *, keep: int) -> None:
        """Write the table of this epoch, and delete all but the last `keep` files of the folder."""
        if keep > 0:
            self.write(folder / f"epoch-{epoch:03d}.parquet")
        files = sorted(folder.glob("epoch-*.parquet"))
        for old in files[: max(len(files) - keep, 0)]:
            old.unlink()

    def write(self, path: Path) -> None:
        """Write the table as Parquet, without the columns that the method does not report; NaN becomes null."""
        if self.is_empty():
            return
        pyarrow = require("pyarrow", extra="train", purpose="write per-pair statistics")
        parquet = require("pyarrow.parquet", extra="train", purpose="write per-pair statistics")
        if self._id_column is None:
            self._id_column = pyarrow.array(list(self.pair_ids), pyarrow.string())
        arrays = {"pair_id": self._id_column}
        for name, column in zip(COLUMNS, self.table.cpu().unbind(1), strict=True):
            if not column.isnan().all():
                arrays[name] = pyarrow.array(column.numpy(), from_pandas=True)
                if name.startswith("clean"):
                    arrays[name] = arrays[name].cast(pyarrow.bool_())
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, lambda partial: parquet.write_table(pyarrow.table(arrays), partial))


def device_time(device: torch.device) -> float:
    """Seconds of a monotonic clock, read after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
