"""Trouble is told in sentences: what happened, what is safe, what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sremkit.errors import UserError
from sremkit.training.run_folder import RunFolder

EXPLODED = 1e8  # a loss beyond this has left every useful range


class StoppedError(UserError):
    """The run was asked to stop and has saved itself."""

    exit_code = 130  # as after Ctrl-C


class DivergedError(UserError):
    """The loss is NaN, infinite or absurdly large."""


def has_diverged(loss: float) -> bool:
    """Whether a loss is beyond hope."""
    return not math.isfinite(loss) or abs(loss) > EXPLODED


def what_diverged(step: int, loss: float, pair_ids: Sequence[str], folder: RunFolder | None) -> str:
    """The step, its pairs, and where the last good state lies."""
    named = ", ".join(pair_ids[:8]) + (", ..." if len(pair_ids) > 8 else "")
    saved = ""
    if folder is not None:
        saved = f" The last good state is the newest checkpoint in {folder.checkpoints}."
    return (
        f"the loss is {loss} at step {step} (pairs {named}). Lower training.learning_rate or "
        f"training.clip, or look at these pairs.{saved}"
    )


def how_to_go_on(step: int, folder: RunFolder | None) -> str:
    """What a run says that was asked to stop."""
    if folder is None:
        return f"stopped after {step} steps"
    return f"stopped after {step} steps and saved; go on with `srem train --resume {folder.path}`"


def signs_of_collapse(metrics: dict[str, float], *, best_rsum: float) -> list[str]:
    """What a validation after the warm-up says of a model that learns nothing, or nothing any more.

    Args:
        best_rsum: of the run so far.
    """
    if metrics.get("score_spread", 1.0) < 1e-4:
        return [
            "the model has collapsed: all images score alike with all texts. A lower learning rate, a "
            "longer warm-up or another method may help; going on will not"
        ]
    if metrics.get("rsum", math.inf) < best_rsum / 2:
        return [
            f"validation R_sum has fallen to {metrics['rsum']:.1f} from {best_rsum:.1f}, whose model is kept as the "
            "best. A longer warm-up or a lower learning rate after it may help; going on will hardly"
        ]
    if metrics.get("rsum", math.inf) < 2 * metrics.get("chance_rsum", 0.0):
        return [
            f"validation recall is at chance ({metrics['rsum']:.1f}, guessing gives "
            f"{metrics['chance_rsum']:.1f}): nothing has been learnt so far"
        ]
    return []


def not_warm_enough(epochs: int, reached: str) -> str:
    """What is said when all epochs of a warm-up are made and the method does not call them enough."""
    if not reached:
        return (
            f"training.adaptive_warmup asks the method when its warm-up suffices, and this one cannot tell: it "
            f"has made all {epochs} epochs of it. Leave training.adaptive_warmup out"
        )
    return (
        f"the warm-up has made all its {epochs} epochs and may be too short: {reached}. Raise "
        "training.warmup_epochs, or training.learning_rate if that hardly grows"
    )


@contextmanager
def writing_to(folder: RunFolder) -> Iterator[None]:
    """Inside, something is written into the run folder; a full disk costs nothing that was saved before."""
    try:
        yield
    except OSError as cause:
        raise UserError(
            f"could not write to {folder.path} ({cause.strerror}); what was saved before is intact: "
            f"make room, then go on with `srem train --resume {folder.path}`"
        ) from cause
