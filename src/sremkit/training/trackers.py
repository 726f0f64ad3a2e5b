"""Experiment trackers: TensorBoard, Weights & Biases and MLflow behind one interface.

A tracker is a reporter that stores the metrics of each epoch. It receives the settings of the run when it starts, and a
resumed run goes on under the same name. A tracker that fails while the training runs is reported once and left out.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from sremkit.config.recipes import TABLES, Recipe
from sremkit.config.settings import suggestion
from sremkit.errors import UnknownNameError, UserError, UserNotice
from sremkit.extras import require
from sremkit.io import digest, first_line, read_json_or_empty, write_json
from sremkit.training.reporters import Reporter
from sremkit.training.run_folder import RunFolder


class Tracker(Reporter):
    """Stores metrics. A subclass implements `log`, and what else it can store.

    Args:
        folder: of the run.
        settings: of the run, by their names such as "training.epochs".
        state: what an earlier part of the same run has left in `state`.
    """

    name: ClassVar[str]

    def __init__(self, folder: Path, settings: dict[str, Any], state: dict[str, Any]) -> None:
        self.state: dict[str, Any] = dict(state)  # JSON, stored in the run folder

    def log(self, metrics: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def note(self, kind: str, sentence: str) -> None:
        """A warning or an information in words."""

    def close(self, *, failed: bool = False) -> None:
        """After the last epoch, or when the training stops before it."""

    def epoch(self, row: dict[str, Any]) -> None:
        numbers = {k: float(v) for k, v in row.items() if isinstance(v, int | float) and k not in ("step", "epoch")}
        self.log(numbers, row["step"])

    def warn(self, sentence: str) -> None:
        self.note("warning", sentence)

    def info(self, sentence: str) -> None:
        self.note("note", sentence)


class TensorBoardTracker(Tracker):
    """Writes TensorBoard events into the run folder."""

    name = "tensorboard"

    def __init__(self, folder: Path, settings: dict[str, Any], state: dict[str, Any]) -> None:
        super().__init__(folder, settings, state)
        require("tensorboard", extra="train", purpose="write TensorBoard events")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def note(self, kind: str, sentence: str) -> None:
        self._writer.add_text(kind, sentence)

    def close(self, *, failed: bool = False) -> None:
        self._writer.close()


class WandbTracker(Tracker):
    """Logs to Weights & Biases; WANDB_PROJECT, WANDB_MODE=offline and its other variables have their meaning."""

    name = "wandb"

    def __init__(self, folder: Path, settings: dict[str, Any], state: dict[str, Any]) -> None:
        super().__init__(folder, settings, state)
        wandb = require("wandb", extra="wandb", purpose="log to Weights & Biases")
        self.state.setdefault("id", digest(os.urandom(16), length=8))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "sremkit"),
            name=folder.resolve().name,
            id=self.state["id"],
            resume="allow",
            dir=str(folder),
            config=settings,
            settings=wandb.Settings(silent=True),
        )

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._run.log(metrics, step=step)

    def note(self, kind: str, sentence: str) -> None:
        self._run.summary[kind] = sentence

    def close(self, *, failed: bool = False) -> None:
        self._run.finish(exit_code=int(failed))


class MLflowTracker(Tracker):
    """Logs to the server that MLFLOW_TRACKING_URI names, else to a database in the run folder."""

    name = "mlflow"

    def __init__(self, folder: Path, settings: dict[str, Any], state: dict[str, Any]) -> None:
        super().__init__(folder, settings, state)
        mlflow = require("mlflow", extra="mlflow", purpose="log to MLflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            require("sqlalchemy", extra="mlflow", purpose="log to MLflow without a server")
            uri = f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        if "run_id" not in self.state:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "sremkit")
            experiment = self._client.get_experiment_by_name(name)
            experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
            run = self._client.create_run(experiment_id, run_name=folder.resolve().name)
            self.state["run_id"] = run.info.run_id
            for key, value in settings.items():
                self._client.log_param(run.info.run_id, key, value)
        self._run_id = self.state["run_id"]
        self._client.update_run(self._run_id, status="RUNNING")

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._run_id, name.replace("@", "_at_"), value, step=step)

    def note(self, kind: str, sentence: str) -> None:
        self._client.set_tag(self._run_id, kind, sentence)

    def close(self, *, failed: bool = False) -> None:
        self._client.set_terminated(self._run_id, status="FAILED" if failed else "FINISHED")


TRACKERS: dict[str, type[Tracker]] = {
    tracker.name: tracker for tracker in (TensorBoardTracker, WandbTracker, MLflowTracker)
}


def check_names(names: Iterable[str]) -> None:
    """Refuse a name that is not of `TRACKERS`."""
    unknown = [name for name in names if name not in TRACKERS]
    if unknown:
        raise UnknownNameError(f"there is no tracker '{unknown[0]}'; {suggestion(unknown[0], TRACKERS)}")


class Tracking(Reporter):
    """The trackers of one run.

    Args:
        folder: of the run.
        names: of `TRACKERS`, in addition to those that an earlier part of the run used.
    """

    def __init__(self, folder: RunFolder, recipe: Recipe, names: Iterable[str] = ("tensorboard",)) -> None:
        check_names(names)
        stored = read_json_or_empty(folder.tracking)
        settings = {
            f"{t}.{key}": value for t in TABLES for key, value in recipe.entries(t).items() if value is not None
        }
        wanted = dict.fromkeys([*names, *(name for name in stored if name in TRACKERS)])
        self.trackers = [self._start(name, folder, settings, stored.get(name, {})) for name in wanted]
        states = {tracker.name: tracker.state for tracker in self.trackers if tracker.state}
        if states:
            write_json(folder.tracking, states)

    @staticmethod
    def _start(name: str, folder: RunFolder, settings: dict[str, Any], state: Any) -> Tracker:
        try:
            return TRACKERS[name](folder.path, settings, state if isinstance(state, dict) else {})
        except (UserError, OSError):
            raise
        except Exception as problem:  # of any kind: other packages and their servers
            raise UserError(
                f"{name} cannot be started ({first_line(problem)}); check its settings, or leave --track {name} out. "
                f"What an earlier part of the run left for it is in {folder.tracking}"
            ) from problem

    def epoch(self, row: dict[str, Any]) -> None:
        self._call("epoch", row)

    def warn(self, sentence: str) -> None:
        self._call("warn", sentence)

    def info(self, sentence: str) -> None:
        self._call("info", sentence)

    def close(self, *, failed: bool = False) -> None:
        self._call("close", failed=failed)

    def _call(self, method: str, *args: Any, **options: Any) -> None:
        """Call all trackers; training goes on without one that fails, such as one whose server cannot be reached."""
        for tracker in list(self.trackers):
            try:
                getattr(tracker, method)(*args, **options)
            except Exception as problem:  # of any kind: other packages and their servers
                self.trackers.remove(tracker)
                warnings.warn(
                    f"{tracker.name} failed and gets no more metrics of this run ({problem}); metrics.jsonl in the run "
                    "folder has all of them",
                    UserNotice,
                    stacklevel=3,
                )
