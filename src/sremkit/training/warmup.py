"""The end of a warm-up: it comes when the method is ready, and it is undone if the training after it fails.

After `training.warmup_epochs` epochs the method reports whether it is ready. If it is not, the warm-up continues epoch
by epoch, for at most half of the run. Training after it is an attempt until an epoch of it ends with a ready method,
which is mostly the first one: the state of the end of the warm-up is kept, and it is restored, and the warm-up
continues, if the method reports a collapse during an epoch, or if validation R_sum has fallen by more than 5 % since.
The run keeps its number of epochs.
"""

from __future__ import annotations

from torch import Tensor

from sremkit.config.recipes import TrainingSettings
from sremkit.methods import Method, WarmupStatus
from sremkit.training.state import Position, Schedule

MIN_RSUM_RATIO = 0.95  # of the validation after an epoch of an attempt, to the one at the end of the warm-up
MAX_ATTEMPTS = 3  # to end the warm-up
CHECKS_PER_EPOCH = 20
MIN_STEPS = 10  # between two checks


class WarmupControl:
    """Decides after each epoch, and during those of an attempt, whether the next steps are warm-up steps.

    Everything that it decides by is in the position and in `checkpoint`, so a resumed run decides the same.
    """

    def __init__(self, settings: TrainingSettings, schedule: Schedule, method: Method) -> None:
        self.settings = settings
        self.schedule = schedule
        self.method = method
        self.checkpoint: dict[str, Tensor] | None = None  # state of the end of the warm-up, during an attempt

    @property
    def is_attempt(self) -> bool:
        """Whether the current epoch is one after the warm-up that may be undone."""
        return self.checkpoint is not None

    def continues(self, position: Position, status: WarmupStatus) -> bool:
        """After the last planned epoch of a warm-up: whether another one follows; then it is planned."""
        most = max(self.settings.warmup_epochs, self.schedule.epochs() // 2)
        if not self.settings.adaptive_warmup or status.is_ready or position.epoch >= most:
            return False
        position.warmup_epochs = position.epoch + 1
        return True

    def is_check_due(self, step_in_epoch: int, steps: int) -> bool:
        return self.is_attempt and step_in_epoch % max(MIN_STEPS, steps // CHECKS_PER_EPOCH) == 0

    def failure(self, position: Position, metrics: dict[str, float]) -> str:
        """Why the attempt has failed, as of the validation after its epoch; empty if it has not."""
        before, after = position.warmup_rsum, metrics.get("rsum")
        if before is None or after is None or after >= MIN_RSUM_RATIO * before:
            return ""
        return f"validation R_sum has fallen to {after:.1f} from {before:.1f}"

    def plan_return(self, position: Position, why: str) -> str:
        """Plan further warm-up epochs, twice as many after each failed attempt; returns what to report."""
        position.failed_attempts += 1
        further = 2 ** (position.failed_attempts - 1) + (position.step_in_epoch > 0)
        last = self.schedule.epochs()
        gave_up = position.failed_attempts >= MAX_ATTEMPTS
        position.warmup_epochs = last if gave_up else min(position.epoch + further, last)
        position.warmup_rsum = None
        position.epochs_without_gain = 0  # patience counts from the end of the warm-up
        rest = "for the rest of the run" if gave_up or position.warmup_epochs == last else "for now"
        return (
            f"training after the warm-up failed: {why}. The weights of the end of the warm-up are restored, and the "
            f"warm-up continues {rest}"
        )
