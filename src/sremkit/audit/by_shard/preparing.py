"""The first work on a shard: its features, and the pairs that it brings to the sample."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sremkit.audit.by_shard.plan import Plan
from sremkit.audit.by_shard.sample import Contribution, contribute, write_contribution
from sremkit.audit.by_shard.shards import Shard
from sremkit.audit.own_rows import Problem
from sremkit.audit.preparation import Judgeable, look_at, make_judgeable
from sremkit.audit.sources import Source, open_source, source_of_embeddings
from sremkit.data.features import MappedFeatures
from sremkit.errors import DataError

UNUSABLE = "the shard cannot be used"


@dataclass(frozen=True, eq=False)
class OpenShard:
    """A shard with the features of its pairs; `judgeable` holds none of them where it says why."""

    source: Source
    judgeable: Judgeable
    unusable: str = ""


class Unreadable(NamedTuple):
    """A shard that is no collection of pairs at all."""

    unusable: str


def prepare_shard(plan: Plan, number: int) -> None:
    """Extract the features of a shard, or go on with it, and put its share of the sample aside."""
    opened = open_shard(plan, number)
    folder = plan.folder(number)
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(opened, Unreadable) or opened.unusable:
        write_contribution(folder / "sample", Contribution.empty())
        plan.save_prepared(number, {"pairs": 0, "images": 0, "unusable": opened.unusable})
        return
    pairs = opened.judgeable.pairs
    write_contribution(folder / "sample", contribute(pairs, plan.allowance, seed=plan.settings.seed))
    plan.save_prepared(number, {"pairs": len(pairs), "images": pairs.num_images, "unusable": ""})


def open_shard(plan: Plan, number: int) -> OpenShard | Unreadable:
    """Read a shard, with the features that are there, or that are now extracted.

    One bad shard among thousands is no reason to stop, so its fault is kept as a sentence.
    """
    try:
        source = open_pairs(plan, number)
    except DataError as fault:
        return Unreadable(str(fault))
    try:
        given = look_at(source.pairs, plan.encoders)
        folder = plan.folder(number) / "features" / given.key
        return OpenShard(source, make_judgeable(given, folder, plan.encoders, workers=plan.workers))
    except DataError as fault:
        problems = {k: Problem(UNUSABLE, str(fault)) for k in range(len(source.pairs))}
        nothing = Judgeable(source.pairs, np.zeros(0, dtype=np.int64), problems)
        return OpenShard(source, nothing, str(fault))


def open_pairs(plan: Plan, number: int) -> Source:
    """The pairs of a shard, under ids that no other shard has where we number them ourselves."""
    shard = plan.shards[number]
    if shard.text_path is not None:
        ids = [f"{shard.name}/{k}" for k in range(len(MappedFeatures(shard.text_path)))]
        return source_of_embeddings(shard.path, shard.text_path, ids=ids, name=shard.name)
    source = open_source(shard.path, format=plan.format, split=plan.split, **plan.options)
    if source.facts["format"] == "table" and "id" not in source.rows.roles:
        return _with_own_ids(source, shard)
    return source


def _with_own_ids(source: Source, shard: Shard) -> Source:
    ids = [f"{shard.name}/{pair_id}" for pair_id in source.pairs.pair_ids]
    return replace(source, pairs=replace(source.pairs, pair_ids=ids))
