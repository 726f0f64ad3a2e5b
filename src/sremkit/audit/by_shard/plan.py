"""What is to be done with which shards, where everything lies, and what is done already."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sremkit.audit.by_shard.shards import Shard
from sremkit.audit.judging_settings import JudgingSettings
from sremkit.audit.preparation import Encoders
from sremkit.audit.stages import BEGUN, JUDGING, SHARDS, Choice, facts_in
from sremkit.errors import UserError
from sremkit.training.checkpoint import is_valid, read_facts, replace_file
from sremkit.version import __version__

SAMPLE = 200_000  # pairs: about 5 GB while learning from the default encoders' vectors
LEAST_SHARE = 16  # of the sample, that every shard brings along
ROOM = 4  # times its even share of the sample that a shard may bring along: shards differ in size


@dataclass(frozen=True, eq=False)
class Plan:
    """An audit by shard.

    Attributes:
        sample: pairs to learn from, at most.
        workers: processes that extract the features of a shard.
    """

    out: Path
    shards: tuple[Shard, ...]
    encoders: Encoders
    settings: JudgingSettings
    choice: Choice
    sample: int = SAMPLE
    format: str | None = None
    split: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    workers: int | None = None
    stamps: tuple[str, ...] = ()  # of each shard: equal for an equal file that is read and sampled equally
    key: str = ""  # of the whole: what is learnt depends on all shards

    def __post_init__(self) -> None:
        if self.sample < 1:
            raise UserError(f"the sample must hold 1 pair or more, got {self.sample}")
        if not self.shards:
            raise UserError("there are no shards to audit")
        object.__setattr__(self, "stamps", tuple(self._stamp(shard) for shard in self.shards))
        facts = [self.stamps, self.settings.of_a_fold(), self.sample, __version__]
        object.__setattr__(self, "key", _hash(facts))

    @property
    def allowance(self) -> int:
        """Pairs that one shard may bring to the sample."""
        even = self.sample / len(self.shards)
        return min(self.sample, max(LEAST_SHARE, int(ROOM * even)))

    @property
    def model(self) -> Path:
        return self.out / "model"

    def folder(self, number: int) -> Path:
        return self.out / SHARDS / self.shards[number].name

    def part(self, number: int) -> Path:
        return self.out / "parts" / f"{self.shards[number].name}.parquet"

    def prepared(self, number: int) -> dict[str, Any] | None:
        """What is known of a shard whose features are there."""
        facts = facts_in(self.folder(number) / "prepared.json")
        return facts if facts.get("stamp") == self.stamps[number] else None

    def judged(self, number: int) -> dict[str, Any] | None:
        """What is known of a shard whose part is there."""
        facts = facts_in(self.folder(number) / "judged.json")
        if facts.get("key") != self.part_key(number) or not self.part(number).is_file():
            return None
        return facts

    def has_model(self) -> bool:
        return is_valid(self.model) and read_facts(self.model).get("key") == self.key

    def part_key(self, number: int) -> str:
        return _hash([self.key, self.stamps[number]])

    def save_prepared(self, number: int, facts: dict[str, Any]) -> None:
        _write(self.folder(number) / "prepared.json", {"stamp": self.stamps[number], **facts})

    def save_judged(self, number: int, facts: dict[str, Any]) -> None:
        _write(self.folder(number) / "judged.json", {"key": self.part_key(number), **facts})

    def _stamp(self, shard: Shard) -> str:
        states = [[str(file.absolute()), *_state(file)] for file in shard.files]
        reading = [self.format, self.split, {name: str(value) for name, value in self.options.items()}]
        encoders = [self.encoders.pictures.description, self.encoders.texts.description]
        return _hash([states, reading, encoders, self.settings.seed, self.allowance])


def begin(plan: Plan) -> None:
    """Mark the folder as this audit's."""
    out = plan.out
    if out.is_file():
        raise UserError(f"{out} is a file; name a folder for the audit")
    out.mkdir(parents=True, exist_ok=True)
    before = facts_in(out / BEGUN)  # nothing where the file is damaged
    if not (out / BEGUN).is_file():
        others = [entry.name for entry in out.iterdir() if not entry.name.startswith(".")]
        if others:
            raise UserError(
                f"{out} holds other files, such as {min(others)}; name a new folder for the audit"
            )
    elif not before.get("by_shard") and (before or (out / JUDGING).is_dir()):
        raise UserError(
            f"{out} holds an audit that was made without --by-shard; name a new folder for this one"
        )
    _write(out / BEGUN, {"by_shard": True, "key": plan.key, "shards": len(plan.shards)})


def names(plan: Plan, numbers: Iterable[int], *, shown: int = 3) -> str:
    """Some shards in words: "a, b, c and 7 more"."""
    some = [plan.shards[number].name for number in numbers]
    more = f" and {len(some) - shown:,} more" if len(some) > shown else ""
    return ", ".join(some[:shown]) + more


def _state(file: Path) -> list[int]:
    state = file.stat()
    return [state.st_size, state.st_mtime_ns]


def _hash(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _write(path: Path, facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
