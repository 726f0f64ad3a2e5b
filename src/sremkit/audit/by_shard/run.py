"""An audit by shard from beginning to end, or as much of it as one of several processes can do."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from sremkit.audit.by_shard.engines import Engine, Work, plain
from sremkit.audit.by_shard.merging import merge
from sremkit.audit.by_shard.model import learn
from sremkit.audit.by_shard.model_store import read_model, write_model
from sremkit.audit.by_shard.page import Excerpt, write_page
from sremkit.audit.by_shard.parts import judge_part
from sremkit.audit.by_shard.plan import Plan, begin, names
from sremkit.audit.by_shard.preparing import prepare_shard
from sremkit.audit.by_shard.sample import gather
from sremkit.audit.stages import SUMMARY, facts_in, from_nothing
from sremkit.audit.streamed_table import StreamedTable
from sremkit.audit.table import arrow
from sremkit.errors import DataError, UserError
from sremkit.training.checkpoint import replace_file
from sremkit.version import __version__

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Share:
    """Which shards this process works on: those whose number leaves `task` when divided by `of`."""

    task: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.task < self.of:
            raise UserError(
                f"--task must be a number from 0 to {self.of - 1} with --of {self.of}, got {self.task}"
            )

    def numbers(self, count: int) -> range:
        return range(self.task, count, self.of)


@dataclass(frozen=True)
class Outcome:
    """What came of a call: the summary of a finished audit, or what is still missing in a sentence."""

    summary: dict[str, Any] | None
    missing: str = ""
    was_complete: bool = False


def audit_by_shard(
    plan: Plan,
    *,
    share: Share | None = None,
    engine: Engine = plain,
    progress: Progress | None = None,
) -> Outcome:
    """Do everything that is missing and can be done now. It waits for nobody.

    Args:
        share: work on these shards only. The process that finds nothing missing after its own work does what
            follows: the learning, or the merging.
    """
    arrow()  # a missing package should show before hours of work, not after
    share = share or Share()
    if (summary := _complete(plan)) is not None:
        return Outcome(summary, was_complete=True)
    begin(plan)
    seconds: dict[str, float] = {}
    anew = None if progress is None else from_nothing(progress)
    _work(prepare_shard, plan.prepared, plan, share, engine, "features", progress, seconds)
    if missing := [k for k in _all(plan) if plan.prepared(k) is None]:
        return Outcome(None, _missing(plan, missing, "features"))
    if not plan.has_model():
        _timed(seconds, "learning", lambda: _learn(plan, anew))
    _work(judge_part, plan.judged, plan, share, engine, "judging", progress, seconds)
    if missing := [k for k in _all(plan) if plan.judged(k) is None]:
        return Outcome(None, _missing(plan, missing, "verdicts"))
    return Outcome(_finish(plan, anew, seconds))


def _work(
    work: Work,
    done: Callable[[int], Any],
    plan: Plan,
    share: Share,
    engine: Engine,
    stage: str,
    progress: Progress | None,
    seconds: dict[str, float],
) -> None:
    """One of the two works on every shard of the share that lacks it."""
    mine = share.numbers(len(plan.shards))
    todo = [number for number in mine if done(number) is None]
    finished = len(mine) - len(todo)

    def run() -> None:
        nonlocal finished
        for _ in engine(work, plan, todo):
            finished += 1
            if progress is not None:
                progress(f"{stage}: shards", finished, len(mine))

    if todo:
        if progress is not None:
            progress(f"{stage}: shards", finished, len(mine))
        _timed(seconds, stage, run)


def _learn(plan: Plan, progress: Progress | None) -> None:
    prepared = [plan.prepared(number) or {} for number in _all(plan)]
    sample = gather(plan)
    num_images = sum(facts["images"] for facts in prepared)
    if len(sample.pair_ids) == sum(facts["pairs"] for facts in prepared):
        num_images = len(sample.image_key)  # pictures that lie in several shards are counted once
    model = learn(sample, plan.settings, num_images=num_images, progress=progress)
    write_model(plan.model, model, plan.settings, key=plan.key)


def _finish(plan: Plan, progress: Progress | None, seconds: dict[str, float]) -> dict[str, Any]:
    model = read_model(plan.model, plan.key)
    rate = model.scores.noise_rate
    source = _source(plan)
    num_rows = sum((plan.judged(number) or {})["rows"] for number in _all(plan))
    excerpt = Excerpt(num_rows)
    started = time.monotonic()
    calls = plan.choice.calls_any(rate)
    merged = merge(plan, calls=calls, facts=source, each=excerpt.add, progress=progress)
    seconds["merging"] = time.monotonic() - started
    facts, says_how_many = merged.facts, rate is not None and merged.mismatches > 0
    summary = {
        "pairs": facts["rows"],
        "images": facts["images"],
        "judged": facts["judged"],
        "mismatches": merged.mismatches,
        "expected_precision": merged.wrong_expected / merged.mismatches if says_how_many else None,
        "noise_rate": None if rate is None else asdict(rate),
        "note": model.scores.note,
        "problems": facts["problems"],
        "duplicates": {"text": facts["text"], "image": facts["image"]},
        "candidates": model.candidates,
        "key": plan.key,
        "seed": plan.settings.seed,
        "choice": plan.choice.as_dict(),
        "by_shard": {"shards": len(plan.shards), "sampled": model.sampled, "line": min(merged.line, 1.0)},
        "settings": {
            "seed": plan.settings.seed,
            "picture_encoder": _encoder(plan, plan.encoders.pictures.description),
            "text_encoder": _encoder(plan, plan.encoders.texts.description),
        },
        "source": source,
        "seconds": {stage: round(taken, 2) for stage, taken in seconds.items()},
        "versions": {"sremkit": __version__, "python": platform.python_version(), "torch": torch.__version__},
    }
    write_page(plan, excerpt, summary)
    replace_file(plan.out / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    return summary


def _complete(plan: Plan) -> dict[str, Any] | None:
    """The summary, if this very audit has been finished and its table can be opened."""
    summary = facts_in(plan.out / SUMMARY)
    if summary.get("key") != plan.key or summary.get("choice") != plan.choice.as_dict():
        return None
    try:
        StreamedTable(plan.out)
    except DataError:
        return None
    return summary


def _source(plan: Plan) -> dict[str, Any]:
    first = plan.shards[0]
    format = "embeddings" if first.text_path is not None else plan.format
    format = format or ("webdataset" if first.path.suffix.lower() == ".tar" else "table")
    options = {name: str(value) for name, value in plan.options.items()}
    return {"path": _folder(first.path), "format": format, "split": plan.split, "options": options}


def _folder(path: Path) -> str:
    return str(path.absolute().parent)


def _encoder(plan: Plan, description: str) -> str:
    return "features as given" if plan.shards[0].text_path is not None else description


def _missing(plan: Plan, numbers: Sequence[int], what: str) -> str:
    count = "1 shard still lacks its" if len(numbers) == 1 else f"{len(numbers):,} shards still lack their"
    return (
        f"{count} {what} ({names(plan, numbers)}): they belong to other tasks. When these have ended, run the "
        "same command again, with or without --task; it goes on with whatever is missing then"
    )


def _all(plan: Plan) -> range:
    return range(len(plan.shards))


def _timed(seconds: dict[str, float], stage: str, work: Callable[[], None]) -> None:
    started = time.monotonic()
    work()
    seconds[stage] = time.monotonic() - started
