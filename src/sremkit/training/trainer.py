"""The training loop: warm up, train, validate, keep the best model, decay, stop. It runs a method and never names one.

A run can stop at any step and resume exactly: the checkpoint holds everything that the next update depends on (weights,
optimizer, generators, position in the data order, state of the method, sums of the epoch), and the data order is a
function of seed and epoch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sremkit.config.recipes import TrainingSettings
from sremkit.data.augmentation import Augmentation
from sremkit.data.batch import Batch
from sremkit.data.batches import Batches
from sremkit.data.prefetch import prefetch
from sremkit.methods import Method, Pairing, TrainingContext
from sremkit.models import build_matcher
from sremkit.models.matcher import EncodedPairs, Matcher, encode_everything
from sremkit.models.regional_compile import CompileClock, use_compile_cache
from sremkit.training.checkpoint import of_another_model, prefixed, without_prefix
from sremkit.training.diagnostics import StoppedError, StopRequest, collapse_warnings, stop_message, writing_to
from sremkit.training.distributed import all_reduce_max
from sremkit.training.execution import describe_execution, deterministic_algorithms, resolve_execution
from sremkit.training.metrics import PairStatistics, StepMetrics, StepValues, device_time, selection_metrics
from sremkit.training.reporters import Observer, Reporter
from sremkit.training.run_folder import RunFolder
from sremkit.training.state import Position, RunState, Schedule, seed_generators
from sremkit.training.step import EMA, OptimizerStep, StepResult, StepRunner
from sremkit.training.warmup import WarmupControl

CONTINUE, SAVE, STOP = range(3)  # after a step


class Trainer:
    """Trains one matcher with one method.

    Args:
        validate: computes the metrics of a model; "rsum" decides which model is kept.
        model_facts: how to build the matcher again; stored with its weights.
        process: rank and number of processes that share every batch.
        trusted: pairs known to be correct, for a method that needs some.
    """

    def __init__(
        self,
        matcher: Matcher,
        method: Method,
        batches: Batches,
        settings: TrainingSettings,
        *,
        device: torch.device,
        folder: RunFolder | None = None,
        validate: Callable[[Matcher], dict[str, float]] | None = None,
        observer: Observer | None = None,
        reporter: Reporter | None = None,
        model_facts: dict[str, Any] | None = None,
        process: tuple[int, int] = (0, 1),
        trusted: Batches | None = None,
    ) -> None:
        self.matcher, self.method, self.device = matcher.to(device), method, device
        self.batches, self.trusted = batches, trusted
        self.rank, self.world = process
        self.folder, self.validate, self.observer = folder, validate, observer
        self.reporter = reporter if reporter is not None and self.rank == 0 else Reporter()
        self.model_facts = model_facts or {}
        self.given = settings
        steps = math.ceil(len(batches.pairs) / settings.batch_size) * Schedule(settings).epochs()
        self.settings = settings = resolve_execution(settings, matcher, method, process, device, num_steps=steps)
        # A step.
        self.augmentation = Augmentation(
            len(batches.pairs), seed=settings.seed, min_area=settings.min_crop_area, flip=settings.flip
        )
        self.step = OptimizerStep(self.matcher, method, settings, device=device, world=self.world)
        self.run_step = StepRunner(
            self.step, self._record, self.given, process=process, warn=lambda why: self.reporter.warn(why)
        )
        self.optimizer = self.step.optimizer
        self.ema = EMA(self.matcher, settings.ema_decay) if settings.ema_decay else None
        self._compile_clock = CompileClock()
        self._compile_cache = use_compile_cache() if settings.compile else None
        # How far the run is, and what it has found.
        self.schedule, self.position = Schedule(settings), Position()
        self.warmup = WarmupControl(settings, self.schedule, method)
        self.step_metrics = StepMetrics(batches.pairs.pair_ids, folder)
        self.statistics = PairStatistics(batches.pairs.pair_ids, device)
        self.best_weights: dict[str, Tensor] | None = None  # kept in memory when there is no folder
        self.state = RunState(
            self.matcher, self.optimizer, method, self.statistics, self.ema, observer, device, process
        )
        self._last_save = time.monotonic()

    def run(self) -> Position:
        """Train to the end, from the newest checkpoint of the run folder if there is one."""
        self._start_or_resume()
        if sentence := describe_execution(self.given, self.settings, self.device):
            self.reporter.info(sentence)
        with (
            StopRequest() as stop,
            deterministic_algorithms(self.settings.deterministic),
            self._compile_clock.running(),
        ):
            while not self.schedule.is_over(self.position):
                epoch = self.position.epoch
                self._begin_epoch(epoch)
                order = self.batches.own_order(epoch, start=self.position.step_in_epoch)
                steps = self.position.step_in_epoch + len(order)
                started = time.perf_counter()
                for rows, batch in zip(order, prefetch(self.batches, order, self.device), strict=True):
                    if self.augmentation.is_on:
                        batch = self.augmentation(batch, rows, epoch)
                    self._update(batch)
                    self.position.train_seconds += time.perf_counter() - started
                    self.reporter.step(epoch, self.position.step_in_epoch, steps, self._means())
                    if self.warmup.is_check_due(self.position.step_in_epoch, steps):
                        self._return_to_warmup(self.method.collapse_message())
                    self._save_or_stop(stop)
                    started = time.perf_counter()  # so that waiting for the next batch counts
                self._finish_epoch(epoch)
                self._save()
        return self.position

    def _start_or_resume(self) -> None:
        seed_generators(self.settings.seed, self.rank)
        self.run_step.reset()  # of an earlier call of `run`
        self.method.start(self.context())
        self._last_save = time.monotonic()
        saved = None if self.folder is None else self.folder.latest_step()
        if saved is not None:
            assert self.folder is not None
            tensors, facts = saved
            with of_another_model(self.folder.checkpoints):
                if "method/image_of_text" in tensors:  # of a version that did not shuffle image ids
                    images = tensors.pop("method/image_of_text").numpy()
                    tensors["method/assigned_images"] = torch.from_numpy(self.batches.image_ids(images))
                self.position = self.state.load(tensors, facts)
                self.warmup.checkpoint = without_prefix("warmup_end", tensors) or None
        if self.folder is not None and self.rank == 0:
            self.folder.forget_metrics_from(self.position.epoch)

    def _begin_epoch(self, epoch: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.learning_rate(self.position)
        if self.position.step_in_epoch > 0:
            return  # resumed within this epoch: the state of the method is from after its beginning
        self.run_step.keep_graphs(self._graph_key())  # others are dropped now, so that the method can use their memory
        started = device_time(self.device)
        with self.step.autocast():
            self.method.begin_epoch(epoch, warmup=self.schedule.is_warmup(self.position))
        self.position.filter_seconds = device_time(self.device) - started
        self.run_step.keep_graphs(self._graph_key())

    def _graph_key(self) -> Hashable:
        """What CUDA graphs of this epoch depend on; None if they cannot be kept for the next one."""
        of_method = self.method.graph_key()
        if of_method is None:
            return None
        return self.schedule.is_warmup(self.position), self.schedule.learning_rate(self.position), of_method

    def _update(self, batch: Batch) -> None:
        """One step of the optimizer, with its metrics and statistics."""
        age = self.position.step - self.position.restarted_at  # in steps, of the present weights
        values = self.run_step(batch, age, warmup=self.schedule.is_warmup(self.position))
        # The metrics of the step before: they have reached the host while this step was launched.
        self.step_metrics.add_to(self.position.sums)
        self.position.step += 1
        self.position.step_in_epoch += 1
        if self.ema is not None:
            self.ema.update(self.matcher, age + 1)
        if values.unobserved is not None and self.observer is not None:
            self.observer.step(*values.unobserved)
        # The tensors of a CUDA graph are overwritten by the next step, so the given pair numbers are kept.
        pair_id = values.pair_id if self.run_step.graphed is None else batch.pair_id
        self.step_metrics.put(self.position.step, pair_id, values)
        if self.device.type == "cpu":
            self.step_metrics.add_to(self.position.sums)

    def _record(self, result: StepResult) -> StepValues:
        """Observe a step, and return its metrics; part of its CUDA graph."""
        pair_id, report = result.batch.pair_id, result.loss.report
        self.statistics.update(pair_id, report)
        unobserved = None
        if self.observer is not None:
            unobserved = result.batch, result.loss, result.pull
            if getattr(self.observer, "supports_cuda_graphs", False):
                self.observer.step(*unobserved)
                unobserved = None
        metrics = {"loss": result.total, **result.loss.parts, **result.extra_losses, **selection_metrics(report)}
        return StepValues.of(pair_id, metrics, unobserved)

    def _save_or_stop(self, stop: StopRequest) -> None:
        """Save if it is time for a checkpoint, or if a signal reached any process; then stop."""
        due = time.monotonic() - self._last_save > 60 * self.settings.checkpoint_minutes
        own = STOP if stop.requested else SAVE if due else CONTINUE
        action = all_reduce_max(own, world=self.world, device=self.device)
        if action != CONTINUE:
            self._save()
        if action == STOP:
            # A launcher may end the other processes as soon as one has left, so all wait until the state is saved.
            all_reduce_max(action, world=self.world, device=self.device)
            raise StoppedError(stop_message(self.position.step, self.folder))

    def _finish_epoch(self, epoch: int) -> None:
        """Validate, keep the best model, write the metrics of the epoch."""
        warmup = self.schedule.is_warmup(self.position)
        self.step_metrics.add_to(self.position.sums)
        self.method.finish_epoch()
        position = self.position
        row: dict[str, Any] = {"step": position.step, "epoch": epoch, "warmup": warmup}
        row["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        row |= self._means()
        if self.observer is not None:
            row |= self.observer.finish_epoch()
        started = time.perf_counter()
        with self.step.autocast():
            metrics = self.validate(self.evaluated) if self.validate is not None else {}
        row |= {f"val/{name}": value for name, value in metrics.items()}
        if compiling := self._compile_clock.seconds:
            self._compile_clock.seconds = 0.0
            position.train_seconds = max(position.train_seconds - compiling, 0.0)
            row["time/compile_seconds"] = compiling
            kept = f"; the result is kept in {self._compile_cache} for the next run" if self._compile_cache else ""
            self.reporter.info(f"compiling took {compiling:.1f} s of this epoch{kept}")
        row["time/train_seconds"] = position.train_seconds
        row["time/filter_seconds"] = position.filter_seconds
        row["time/validate_seconds"] = time.perf_counter() - started
        row["time/pairs_per_second"] = len(self.batches.pairs) / max(position.train_seconds, 1e-9)
        self._keep_if_best(metrics.get("rsum", float(position.step)), row)
        failure = self.warmup.failure(position, metrics) if self.warmup.is_attempt else ""
        if not warmup and not failure:  # a failed attempt is reported as such
            for sentence in collapse_warnings(metrics, best_rsum=position.best_score):
                self.reporter.warn(sentence)
        if self.rank == 0 and self.folder is not None:
            with writing_to(self.folder):
                self.folder.append_metrics(row)
                self.statistics.write_epoch(self.folder.statistics, epoch, keep=self.settings.keep_statistics)
        self.reporter.epoch(row)
        self.statistics.clear()
        position.epoch += 1
        position.step_in_epoch = 0
        position.sums = {}
        position.train_seconds = position.filter_seconds = 0.0
        if warmup and not self.schedule.is_warmup(position):
            self._finish_warmup(metrics)
        elif self.warmup.is_attempt:
            self._return_to_warmup(failure)
            if self.method.warmup_status().is_ready:  # else the attempt lasts: a collapse can take several epochs
                self.warmup.checkpoint, position.warmup_rsum = None, None

    def _finish_warmup(self, metrics: dict[str, float]) -> None:
        """End the warm-up if the method is ready, and keep the state of its end."""
        position, status = self.position, self.method.warmup_status()
        if self.schedule.is_over(position):
            return
        if self.warmup.continues(position, status):
            if position.epoch == self.settings.warmup_epochs:
                self.reporter.info(f"the warm-up continues after {position.epoch} epochs: {status.message}")
            return
        if self.settings.adaptive_warmup and status.message:
            self.reporter.info(f"the warm-up ends after {position.epoch} epochs: {status.message}")
        elif not status.is_ready:
            self.reporter.warn(
                f"the warm-up ends after {position.epoch} epochs and may be too short: {status.message}. Training may "
                "collapse; training.adaptive_warmup=true would continue it"
            )
        if status.finding:
            self.reporter.info(status.finding)
        if self.settings.adaptive_warmup and self.method.returns_to_warmup:
            self.warmup.checkpoint = self.state.trained_tensors()
            position.warmup_rsum = metrics.get("rsum")

    def _return_to_warmup(self, why: str) -> None:
        """Restore the state of the end of the warm-up and continue it, if there is a reason."""
        if not why or self.warmup.checkpoint is None:
            return
        self.state.load_trained(self.warmup.checkpoint)
        self.warmup.checkpoint = None
        self.reporter.warn(self.warmup.plan_return(self.position, why))
        self.run_step.reset()
        if self.position.step_in_epoch > 0:
            self.method.begin_epoch(self.position.epoch, warmup=True)

    def _keep_if_best(self, score: float, row: dict[str, Any]) -> None:
        position = self.position
        if score <= position.best_score:
            position.epochs_without_gain += not self.schedule.is_warmup(position)
            return
        position.best_score, position.epochs_without_gain = score, 0
        if self.folder is None:
            self.best_weights = {name: t.detach().clone() for name, t in self.evaluated.state_dict().items()}
        elif self.rank == 0:
            facts = {**self.model_facts, "metrics": row}
            with writing_to(self.folder):
                self.folder.save_best(position.step, prefixed("model", self.evaluated.state_dict()), facts)

    def _save(self) -> None:
        """Write a checkpoint; to be called by all processes together."""
        self.step_metrics.add_to(self.position.sums)
        self._last_save = time.monotonic()
        if self.folder is None:
            return
        tensors = self.state.tensors()
        if self.warmup.checkpoint is not None:
            tensors |= prefixed("warmup_end", self.warmup.checkpoint)
        if self.rank == 0:
            facts = {**self.model_facts, **self.state.facts(self.position)}
            with writing_to(self.folder):
                self.folder.save_step(self.position.step, tensors, facts)

    def _means(self) -> dict[str, float]:
        steps = max(self.position.step_in_epoch, 1)
        return {name: value / steps for name, value in self.position.sums.items()}

    @property
    def evaluated(self) -> Matcher:
        """The model that is validated and kept: the averaged one, if there is one."""
        return self.matcher if self.ema is None else self.ema.matcher

    def context(self) -> TrainingContext:
        """What the method may use apart from batches."""
        return TrainingContext(
            num_pairs=len(self.batches.pairs),
            device=self.device,
            matcher=self.matcher,
            scan_pairs=lambda round_: prefetch(self.batches, self.batches.scan_order(round_), self.device),
            trusted=self.trusted,
            pairing=Pairing(
                image_of_text=torch.from_numpy(self.batches.image_ids(self.batches.pairs.image_of_text)),
                encode=self._encode,
                assign_images=self._assign_images,
            ),
            take_pairs=lambda rows: self.batches.take(rows.cpu().numpy()).to(self.device),
            restart=self._restart,
        )

    def _encode(self, text_rows: Tensor) -> tuple[Matcher, EncodedPairs]:
        """The evaluated model, all images in the order of their ids, and these texts."""
        images, texts = encode_everything(self.evaluated, self.batches, text_rows=text_rows.cpu().numpy())
        rows = self.batches.image_rows(np.arange(len(images)))
        return self.evaluated, EncodedPairs(images[torch.from_numpy(rows).to(self.device)], texts)

    def _assign_images(self, image_ids: Tensor) -> None:
        self.batches = self.batches.paired_as(self.batches.image_rows(image_ids.numpy()))

    def _restart(self) -> None:
        """Initialise the model again, equally in all processes, with a new state of the optimizer and a new average."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed + self.position.epoch + 1)
            fresh = build_matcher(self.matcher.name, **self.matcher.options).state_dict()
        self.matcher.load_state_dict(fresh)
        for moments in self.optimizer.state.values():  # in place: a CUDA graph may be captured by the next step
            for moment in moments.values():
                moment.zero_()
        if self.ema is not None:
            self.ema.matcher.load_state_dict(fresh)
        self.position.restarted_at = self.position.step
