"""A Lightning callback that reports the end of the warm-up and keeps its state in the checkpoint."""

from __future__ import annotations

import importlib.util
from typing import Any

from sremkit.extras import require
from sremkit.integrations.warmup import Warmup, WarmupReport


def warmup_callback(warmup: Warmup) -> Any:
    """A `Callback` of Lightning, under either name of the package (`lightning`, `pytorch_lightning`)."""
    name = "lightning.pytorch" if importlib.util.find_spec("lightning") else "pytorch_lightning"
    lightning = require(name, extra="lightning", purpose="report to its Trainer")

    class WarmupCallback(lightning.Callback):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            self.report = WarmupReport(warmup)

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            module.log("warmup", float(warmup.warmup))
            sentence = self.report.changed()
            if sentence is not None and trainer.is_global_zero:
                print(f"step {trainer.global_step}: {sentence}", flush=True)

        def state_dict(self) -> dict[str, Any]:
            return warmup.state_dict()

        def load_state_dict(self, state: dict[str, Any]) -> None:
            warmup.load_state_dict(state)
            self.report = WarmupReport(warmup)

    return WarmupCallback()
