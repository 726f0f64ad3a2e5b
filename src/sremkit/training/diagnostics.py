"""What can go wrong in a run, and what it reports then: divergence, collapse, a full disk, a requested stop."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from sremkit.errors import UserError
from sremkit.training.run_folder import RunFolder

MAX_LOSS = 1e8  # a larger loss has diverged


class StoppedError(UserError):
    """The run was stopped by a signal and has saved its state."""

    exit_code = 130  # as after Ctrl-C


class DivergedError(UserError):
    """The loss is NaN, infinite or very large."""


class StopRequest:
    """Handles Ctrl-C and SIGTERM inside a `with` block: the first sets `requested`, a second one interrupts."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # signals reach no other thread
            self._handlers = {number: signal.signal(number, self._handle) for number in self.SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def divergence_message(step: int, loss: float, pair_ids: Sequence[str], folder: RunFolder | None) -> str:
    """The step, its pairs, and where the last good state is."""
    named = ", ".join(pair_ids[:8]) + (", ..." if len(pair_ids) > 8 else "")
    saved = f" The last good state is the newest checkpoint in {folder.checkpoints}." if folder is not None else ""
    return (
        f"the loss is {loss} at step {step} (pairs {named}). Lower training.learning_rate or "
        f"training.max_grad_norm, or inspect these pairs.{saved}"
    )


def stop_message(step: int, folder: RunFolder | None) -> str:
    if folder is None:
        return f"stopped after {step} steps"
    return f"stopped after {step} steps and saved; continue with `srem train --resume {folder.path}`"


def collapse_warnings(metrics: dict[str, float], *, best_rsum: float) -> list[str]:
    """Warnings about a validation after the warm-up: constant scores, a large fall, or chance level.

    Args:
        best_rsum: of the run so far.
    """
    if metrics.get("score_spread", 1.0) < 1e-4:
        return [
            "the model has collapsed: all images have the same scores with all texts. A lower learning rate, a "
            "longer warm-up or another method may help; further epochs will not"
        ]
    if metrics.get("rsum", math.inf) < best_rsum / 2:
        return [
            f"validation R_sum has fallen to {metrics['rsum']:.1f} from {best_rsum:.1f}, whose model is kept as the "
            "best. A longer warm-up or a lower learning rate after it may help; further epochs hardly will"
        ]
    if metrics.get("rsum", math.inf) < 2 * metrics.get("chance_rsum", 0.0):
        return [
            f"validation recall is at chance level (R_sum {metrics['rsum']:.1f}, random scores give "
            f"{metrics['chance_rsum']:.1f}): nothing has been learned so far"
        ]
    return []


@contextmanager
def writing_to(folder: RunFolder) -> Iterator[None]:
    """Turn an error of the file system inside the block into a sentence."""
    try:
        yield
    except OSError as cause:
        raise UserError(
            f"could not write to {folder.path} ({cause.strerror}); earlier checkpoints are intact: "
            f"make room, then continue with `srem train --resume {folder.path}`"
        ) from cause
