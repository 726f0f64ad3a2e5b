"""The training loop: warm up, train, validate, keep the best, decay, stop. Runs a method, never names one.

A run can end at any moment and go on as if nothing had happened: everything that decides the next update
(weights, optimiser, generators, place in the data order, the method's and the epoch's sums) is in the
checkpoint, and the data order is a function of seed and epoch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.data.batches import Batches
from sremkit.data.prefetch import brought, prefetched
from sremkit.methods import Method, Pairing, Surroundings
from sremkit.models.encoding import EncodedPairs, encode_everything
from sremkit.models.matcher import Matcher
from sremkit.recipes import TrainingSettings
from sremkit.training.average import AveragedWeights
from sremkit.training.checkpoint import prefixed
from sremkit.training.clock import now
from sremkit.training.distributed import any_of_all
from sremkit.training.numbers import StepNumbers, filter_numbers
from sremkit.training.recorded import RecordedSteps, records
from sremkit.training.run_folder import RunFolder
from sremkit.training.schedule import Position, Schedule
from sremkit.training.signals import StopRequest
from sremkit.training.state import RunState
from sremkit.training.statistics import PairStatistics
from sremkit.training.step import OptimizerStep, StepOutcome
from sremkit.training.trouble import (
    StoppedError,
    how_to_go_on,
    not_warm_enough,
    signs_of_collapse,
    writing_to,
)
from sremkit.training.watching import Observer, Reporter


class Trainer:
    """Trains one matcher with one method.

    Args:
        validate: gives the metrics of a model; "rsum" decides which one is kept.
        model_facts: what it takes to build the matcher again; stored beside its weights.
        process: rank and number of processes that share every batch.
        trusted: pairs known to be right, for a method that needs some.
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
        self.matcher = matcher.to(device)
        self.method = method
        self.batches = batches
        self.settings = settings
        self.device = device
        self.rank, self.world = process
        self.folder = folder
        self.trusted = trusted
        self.validate = validate
        self.observer = observer
        self.reporter = reporter
        self.model_facts = model_facts or {}
        self.statistics = PairStatistics(batches.pairs.pair_ids, device)
        self.position = Position()
        self.schedule = Schedule(settings)
        self.numbers = StepNumbers(batches.pairs.pair_ids, folder)
        self.step = OptimizerStep(self.matcher, method, settings, device=device, world=self.world)
        self.optimizer = self.step.optimizer
        self.recorded = (
            RecordedSteps(self._as_usual, device, can_record=self._kernels_hold)
            if records(settings, self.matcher, method, process, device)
            else None
        )
        self.average = AveragedWeights(self.matcher, settings.average) if settings.average else None
        self._told_of_unheld = False
        self.best_weights: dict[str, Tensor] | None = None  # kept in memory when there is no folder
        self.state = RunState(
            self.matcher, self.optimizer, method, self.statistics, self.average, observer, device
        )

    def run(self) -> Position:
        """Train to the end, from wherever the run folder stands."""
        self._start_or_restore()
        self._tell_length()
        with StopRequest() as stop:
            last_save = time.monotonic()
            while not self.schedule.is_over(self.position):
                epoch, warmup = self.position.epoch, self.schedule.is_warmup(self.position)
                for group in self.optimizer.param_groups:
                    group["lr"] = self.schedule.learning_rate(self.position)
                self._begin_epoch(epoch, warmup=warmup)
                if self.recorded is not None:
                    self.recorded.forget()
                steps = len(self.batches.order(epoch))
                start = self.position.step_in_epoch
                for batch in prefetched(self.batches, epoch, self.device, start=start):
                    started = time.perf_counter()
                    self._update(batch)
                    self.position.train_seconds += time.perf_counter() - started
                    self._report_step(epoch, steps)
                    # A signal may have come to one process alone.
                    stopping = any_of_all(stop.requested, world=self.world, device=self.device)
                    if stopping or time.monotonic() - last_save > 60 * self.settings.checkpoint_minutes:
                        self._save()
                        last_save = time.monotonic()
                    if stopping:
                        # None leaves before all is saved: a launcher may end the others when one is gone.
                        any_of_all(stopping, world=self.world, device=self.device)
                        raise StoppedError(how_to_go_on(self.position.step, self.folder))
                self._finish_epoch(epoch, warmup=warmup)
                self._save()
                last_save = time.monotonic()
        return self.position

    @property
    def evaluated(self) -> Matcher:
        """The model that counts: the averaged one, where there is one."""
        return self.matcher if self.average is None else self.average.matcher

    def surroundings(self) -> Surroundings:
        """What the method may use beside the batches."""
        return Surroundings(
            num_pairs=len(self.batches.pairs),
            device=self.device,
            matcher=self.matcher,
            every_pair=lambda round_: brought(self.batches, self.batches.looking_order(round_), self.device),
            trusted=self.trusted,
            pairing=Pairing(
                image_of_text=torch.from_numpy(self.batches.pairs.image_of_text),
                encode=self._encode,
                give_images=self._give_images,
            ),
        )

    def _encode(self, texts: Tensor) -> tuple[Matcher, EncodedPairs]:
        matcher = self.evaluated
        return matcher, encode_everything(matcher, self.batches, text_rows=texts.cpu().numpy())

    def _give_images(self, image_of_text: Tensor) -> None:
        self.batches = self.batches.paired_as(image_of_text.numpy())

    def _begin_epoch(self, epoch: int, *, warmup: bool) -> None:
        if self.position.step_in_epoch > 0:
            return  # stopped in this epoch and resumed: the method's state has what it made at its beginning
        started = now(self.device)
        with self.step.precision():
            self.method.begin_epoch(epoch, warmup=warmup)
        self.position.filter_seconds = now(self.device) - started

    def _update(self, batch: Batch) -> None:
        """One step of the optimiser, and what is remembered of it."""
        if self.recorded is None:
            outcome = self._as_usual(batch.to(self.device, non_blocking=True))
        elif self._begins():  # few steps, and of larger numbers than the kernels may hold
            outcome = self.recorded.as_usual(batch)
        else:
            outcome = self.recorded(batch)
        self._settle()  # the step before: its numbers have arrived while this one was on its way to the device
        self.position.step += 1
        self.position.step_in_epoch += 1
        if self.average is not None:
            self.average.update(self.matcher, self.position.step)
        terms, pair_id = outcome.terms, outcome.batch.pair_id
        self.statistics.update(pair_id, terms)
        if self.observer is not None:
            self.observer.step(outcome.batch, terms, outcome.pull)
        numbers = {"loss": outcome.loss, **terms.parts, **outcome.extra, **filter_numbers(terms)}
        # A recording's own numbers are overwritten by the next step.
        pair_id = pair_id if self.recorded is None else batch.pair_id
        self.numbers.note(self.position.step, pair_id, numbers)
        if self.device.type == "cpu":
            self._settle()

    def _as_usual(self, batch: Batch) -> StepOutcome:
        warmup = self.schedule.is_warmup(self.position)
        return self.step(batch, warmup=warmup, full_precision=self._begins())

    def _kernels_hold(self, batch: Batch) -> bool:
        """Whether a step of this batch can be recorded; the first one that cannot is told of."""
        with self.step.precision():
            held = self.matcher.kernels_hold(batch)
        if not held and not self._told_of_unheld and self.reporter is not None:
            self._told_of_unheld = True
            self.reporter.warn(
                "training.recorded: some batches have longer captions, more regions or wider similarities than the "
                "kernels hold; their steps run as usual, which is slower"
            )
        return held

    def _begins(self) -> bool:
        """Whether the next step is one of the first in bf16, which are in full precision."""
        return self.settings.precision == "bf16" and self.position.step < self.settings.full_precision_steps

    def _settle(self) -> None:
        """Read the numbers of the last noted step, and stop if they are absurd."""
        self.numbers.read_into(self.position.sums)

    def _finish_epoch(self, epoch: int, *, warmup: bool) -> None:
        """Validate, keep the best model, write the epoch's row."""
        self._settle()
        self.method.finish_epoch()
        position = self.position
        row: dict[str, Any] = {"step": position.step, "epoch": epoch, "warmup": warmup}
        row["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        row |= self._means()
        if self.observer is not None:
            row |= self.observer.finish_epoch()
        started = time.perf_counter()
        with self.step.precision():
            metrics = self.validate(self.evaluated) if self.validate is not None else {}
        row |= {f"val/{name}": value for name, value in metrics.items()}
        row["time/train_seconds"] = position.train_seconds
        row["time/filter_seconds"] = position.filter_seconds
        row["time/validate_seconds"] = time.perf_counter() - started
        row["time/pairs_per_second"] = len(self.batches.pairs) / max(position.train_seconds, 1e-9)
        self._keep_if_best(metrics.get("rsum", float(position.step)), row)
        if not warmup:
            for sentence in signs_of_collapse(metrics, best_rsum=position.best_score):
                self._warn(sentence)
        if self.rank == 0 and self.folder is not None:
            self.folder.append_metrics(row)
            with writing_to(self.folder):
                self.statistics.write_epoch(self.folder.statistics, epoch, keep=self.settings.keep_statistics)
        if self.rank == 0 and self.reporter is not None:
            self.reporter.epoch(row)
        self.statistics.clear()
        position.epoch += 1
        position.step_in_epoch = 0
        position.sums = {}
        position.train_seconds = position.filter_seconds = 0.0
        if warmup and self.settings.adaptive_warmup:
            self._end_warmup_if_enough()
        elif warmup and not self.schedule.is_warmup(position) and (sentence := self.method.too_cold()):
            self._warn(sentence)
        if warmup and not self.schedule.is_warmup(position) and (sentence := self.method.found_out()):
            self._say(sentence)

    def _end_warmup_if_enough(self) -> None:
        made = self.position.epoch
        enough = self.method.warmed_up()
        if enough:
            self.position.warmup_epochs = made
        if self.schedule.is_warmup(self.position):
            return
        if enough:
            self._say(f"warm-up enough after {made} epochs: {self.method.warmth()}")
        else:
            self._warn(not_warm_enough(made, self.method.warmth()))
        self._tell_length()

    def _say(self, sentence: str) -> None:
        if self.rank == 0 and self.reporter is not None:
            self.reporter.say(sentence)

    def _warn(self, sentence: str) -> None:
        if self.rank == 0 and self.reporter is not None:
            self.reporter.warn(sentence)

    def _tell_length(self) -> None:
        """Tell how many epochs there will be, where the settings alone do not."""
        if self.settings.adaptive_warmup and self.rank == 0 and self.reporter is not None:
            self.reporter.expect(
                self.schedule.epochs(self.position), at_most=self.schedule.is_warmup(self.position)
            )

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
        """Write everything that decides how the run goes on."""
        self._settle()
        if self.rank != 0 or self.folder is None:
            return
        facts = {**self.model_facts, **self.state.facts(self.position)}
        with writing_to(self.folder):
            self.folder.save_step(self.position.step, self.state.tensors(), facts)

    def _start_or_restore(self) -> None:
        torch.manual_seed(self.settings.seed)
        self.method.start(self.surroundings())
        saved = None if self.folder is None else self.folder.latest_step()
        if saved is None:
            if self.folder is not None and self.rank == 0:
                self.folder.forget_metrics_from(0)
            return
        self.position = self.state.load(*saved)
        assert self.folder is not None
        if self.rank == 0:
            self.folder.forget_metrics_from(self.position.epoch)

    def _means(self) -> dict[str, float]:
        steps = max(self.position.step_in_epoch, 1)
        return {name: value / steps for name, value in self.position.sums.items()}

    def _report_step(self, epoch: int, steps: int) -> None:
        if self.rank == 0 and self.reporter is not None:
            self.reporter.step(epoch, self.position.step_in_epoch, steps, self._means())


__all__ = ["Observer", "Position", "Reporter", "Trainer"]
