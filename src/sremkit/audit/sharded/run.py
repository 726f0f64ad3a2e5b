"""A sharded audit from start to end, or as much of it as one of several processes can do now.

An engine works on shards: this process, one shard after another, or the workers of a Ray cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sremkit.audit.folder import sole_auditor
from sremkit.audit.result_table import SUMMARY, ResultTable, arrow, read_summary
from sremkit.audit.scoring.cross_fit import Progress
from sremkit.audit.sharded.merge import merge
from sremkit.audit.sharded.plan import ShardPlan
from sremkit.audit.sharded.sample import SampleModel, gather
from sremkit.audit.sharded.shard import prepare_shard, score_shard
from sremkit.audit.stages import from_zero, timed
from sremkit.errors import DataError, UserError
from sremkit.extras import require
from sremkit.io import first_line, write_json

Work = Callable[[ShardPlan, int], None]
Engine = Callable[[Work, ShardPlan, Sequence[int]], Iterator[int]]
QUEUED_PER_CORE = 4  # submitted tasks for each core, so that none runs idle


@dataclass(frozen=True)
class Share:
    """The shards of one process: those with number % of == task."""

    task: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.task < self.of:
            raise UserError(f"--task must be a number from 0 to {self.of - 1} with --of {self.of}, got {self.task}")

    def numbers(self, count: int) -> range:
        return range(self.task, count, self.of)


@dataclass(frozen=True)
class ShardedResult:
    """The summary of a finished audit, or a sentence on what is still missing."""

    summary: dict[str, Any] | None
    missing: str = ""
    was_complete: bool = False


def run_locally(work: Work, plan: ShardPlan, numbers: Sequence[int]) -> Iterator[int]:
    """Work on these shards in this process; yields the number of each when it is done."""
    for number in numbers:
        work(plan, number)
        yield number


def audit_shards(
    plan: ShardPlan, *, share: Share | None = None, engine: Engine = run_locally, progress: Progress | None = None
) -> ShardedResult:
    """Do everything that is missing and can be done now, without waiting for other processes.

    Args:
        share: work on these shards only. A process that finds nothing missing after its own work continues with
            the next step: the fit, or the merge.
    """
    arrow()  # a missing package is reported now, not after hours of work
    if (summary := _complete(plan)) is not None:
        return ShardedResult(summary, was_complete=True)
    plan.begin()
    with sole_auditor(plan.out, "" if share is None else f"-{share.task}-of-{share.of}"):
        return _audit_missing(plan, share or Share(), engine, progress)


def _audit_missing(plan: ShardPlan, share: Share, engine: Engine, progress: Progress | None) -> ShardedResult:
    numbers = share.numbers(len(plan.shards))
    seconds: dict[str, float] = {}

    def run(work: Work, done: Callable[[int], Any], stage: str) -> list[int]:
        """Work on every shard of the share for which it is not done; returns the shards of others that lack it."""
        todo = [number for number in numbers if done(number) is None]
        if todo:
            report = progress or (lambda stage, done, total: None)
            before = len(numbers) - len(todo)
            report(f"{stage}: shards", before, len(numbers))
            with timed(seconds, stage):
                for finished, _ in enumerate(engine(work, plan, todo), start=before + 1):
                    report(f"{stage}: shards", finished, len(numbers))
            if lost := [number for number in todo if done(number) is None]:
                raise UserError(
                    f"{len(lost):,} shards are done, such as {plan.shards[lost[0]].name}, but not in {plan.out}: the "
                    "machines at work do not see the same folder; name one that all of them see"
                )
        return [number for number in range(len(plan.shards)) if done(number) is None]

    if missing := run(prepare_shard, plan.prepared, "features"):
        return ShardedResult(None, _missing(plan, missing, "features"))
    if not plan.has_model():
        with timed(seconds, "training"):
            _fit(plan, from_zero(progress))
    if missing := run(score_shard, plan.scored, "scoring"):
        return ShardedResult(None, _missing(plan, missing, "scores"))
    with timed(seconds, "merging"):
        summary = merge(plan, from_zero(progress))
    summary["seconds"] = {stage: round(elapsed, 2) for stage, elapsed in seconds.items()}
    write_json(plan.out / SUMMARY, summary)
    return ShardedResult(summary)


def _fit(plan: ShardPlan, progress: Progress | None) -> None:
    prepared = [plan.prepared(number) or {} for number in range(len(plan.shards))]
    sample = gather(plan)
    num_images = sum(facts["images"] for facts in prepared)
    if len(sample.pair_ids) == sum(facts["pairs"] for facts in prepared):
        num_images = len(sample.image_ids)  # images that are in several shards are counted once
    model = SampleModel.fit(sample, plan.settings, num_images=num_images, progress=progress)
    model.save(plan.model, key=plan.key)


def _complete(plan: ShardPlan) -> dict[str, Any] | None:
    """The summary, if this audit is finished and its table can be opened."""
    try:
        summary = read_summary(plan.out)
        if summary.get("key") != plan.key or summary.get("cutoff") != plan.cutoff.as_dict():
            return None
        ResultTable(plan.out)
    except DataError:  # damaged
        return None
    return summary


def _missing(plan: ShardPlan, numbers: Sequence[int], what: str) -> str:
    count = "1 shard has no" if len(numbers) == 1 else f"{len(numbers):,} shards have no"
    names = ", ".join(plan.shards[number].name for number in numbers[:3])
    more = f" and {len(numbers) - 3:,} more" if len(numbers) > 3 else ""
    return (
        f"{count} {what} yet ({names}{more}): they belong to other tasks. When these have ended, run the "
        "same command again, with or without --task; it continues with what is missing then"
    )


def run_on_ray(work: Work, plan: ShardPlan, numbers: Sequence[int]) -> Iterator[int]:
    """Work in Ray tasks of one core each, on the cluster of RAY_ADDRESS or on this machine.

    Only shard numbers are sent: workers read and write the same folders, so all machines must see them. A task
    whose machine fails is run again elsewhere.
    """
    ray = require("ray", extra="scale", purpose="distribute the work over a Ray cluster")
    started = not ray.is_initialized()
    if started:
        _connect(ray, plan.workers)
    try:
        yield from _tasks(ray, work, plan, numbers, finish=not started)
    finally:
        if started:  # which ends the tasks as well
            ray.shutdown()


def _connect(ray: Any, workers: int | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False)
    else:  # a cluster of its own that no other machine can reach, not one that runs here or was killed here
        local = {"address": "local", "_node_ip_address": "127.0.0.1", "include_dashboard": False}
        ray.init(num_cpus=workers or None, log_to_driver=False, logging_level="error", **local)


def _work_in(folder: str, work: Work, plan: ShardPlan, number: int) -> None:
    """A task: the work on one shard, from the folder that the command was given in."""
    try:
        os.chdir(folder)
    except OSError as cause:
        raise UserError(
            f"{folder} is not on the machine of a Ray worker ({cause.strerror}); give the command in a folder that all "
            "machines see"
        ) from cause
    work(plan, number)


def _tasks(ray: Any, work: Work, plan: ShardPlan, numbers: Sequence[int], *, finish: bool) -> Iterator[int]:
    """Args: finish: after a failure wait for the tasks that have been handed over."""
    # Workers of a cluster that runs already are elsewhere, where relative paths would name other files.
    task = ray.remote(num_cpus=1)(_work_in).options(name=work.__name__)
    folder = os.getcwd()
    shared_plan = ray.put(replace(plan, workers=0))  # a task has one core: it starts no processes of its own
    max_queued = QUEUED_PER_CORE * max(int(ray.cluster_resources().get("CPU", 1)), 1)
    left = list(reversed(numbers))
    number_of: dict[Any, int] = {}
    try:
        while left or number_of:
            while left and len(number_of) < max_queued:
                number = left.pop()
                number_of[task.remote(folder, work, shared_plan, number)] = number
            (done,), _ = ray.wait(list(number_of), num_returns=1)
            number = number_of.pop(done)
            try:
                ray.get(done)
            except ray.exceptions.RayTaskError as failure:
                if isinstance(failure.cause, UserError):
                    raise failure.cause from None
                raise
            except ray.exceptions.RayError as failure:  # the worker or its node was lost, more often than Ray tries
                raise UserError(
                    f"Ray lost the worker of shard {plan.shards[number].name} several times "
                    f"({type(failure).__name__}: {first_line(failure)}); everything finished so far is kept: give the "
                    "same command again when the cluster is well, with more memory for each worker if it was short"
                ) from failure
            yield number
    finally:
        # Not `ray.cancel`: Ray aborts this process if the task is just ending.
        if finish and number_of:
            ray.wait(list(number_of), num_returns=len(number_of))


ENGINES: dict[str, Engine] = {"local": run_locally, "ray": run_on_ray}
