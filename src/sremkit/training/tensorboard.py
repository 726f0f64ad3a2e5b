"""The epoch's numbers as TensorBoard events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sremkit.extras import require


class TensorBoardWriter:
    """Writes every number of an epoch's row."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", extra="train", purpose="write TensorBoard events")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def epoch(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if isinstance(value, int | float) and name not in ("step", "epoch"):
                self._writer.add_scalar(name, value, row["step"])
        self._writer.flush()

    def step(self, epoch: int, step: int, steps: int, means: dict[str, float]) -> None:
        """Steps are too many to keep."""

    def warn(self, sentence: str) -> None:
        self._writer.add_text("warning", sentence)

    def say(self, sentence: str) -> None:
        self._writer.add_text("note", sentence)

    def expect(self, epochs: int, *, at_most: bool) -> None:
        """How long the run will be is nothing to draw."""

    def close(self) -> None:
        self._writer.close()
