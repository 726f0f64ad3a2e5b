"""The work on one shard: first its features and its contribution to the sample, later the scores of its pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sremkit.audit.embed import EmbeddedPairs, embed_pairs, inspect_inputs
from sremkit.audit.inputs import Problem, Source, open_source, source_of_embeddings
from sremkit.audit.issues import count_issues, find_duplicates, find_issues
from sremkit.audit.result_table import IDENTITY, VERDICT, arrow, build_table, with_column, write_table
from sremkit.audit.scoring.types import PairScores
from sremkit.audit.sharded.plan import ShardPlan
from sremkit.audit.sharded.sample import SampleModel, write_contribution
from sremkit.audit.summary import count_problems
from sremkit.data.features import MappedFeatures
from sremkit.data.pairs import MISSING
from sremkit.errors import DataError
from sremkit.worker_processes import one_thread

if TYPE_CHECKING:
    import pyarrow as pa

UNUSABLE = "the shard cannot be used"


class OpenShard(NamedTuple):
    """A shard with the features of its pairs, or why it cannot be used."""

    source: Source | None  # None if it holds no pairs that can be read
    embedded: EmbeddedPairs | None  # None if none of its pairs can be embedded
    unusable: str = ""


def open_shard(plan: ShardPlan, number: int) -> OpenShard:
    """Read a shard, and extract its features or read them. One unusable shard does not stop the audit."""
    source = None
    try:
        source = open_pairs(plan, number)
        inputs = inspect_inputs(source.pairs, plan.encoders)
        folder = plan.folder(number) / "features" / inputs.key
        return OpenShard(source, embed_pairs(inputs, folder, plan.encoders, workers=plan.workers))
    except DataError as fault:
        return OpenShard(source, None, str(fault))


def open_pairs(plan: ShardPlan, number: int) -> Source:
    """The pairs of a shard; ids that are row numbers get the shard's name, so that they are unique."""
    shard = plan.shards[number]
    if shard.text_path is not None:
        ids = [f"{shard.name}/{k}" for k in range(len(MappedFeatures(shard.text_path)))]
        return source_of_embeddings(shard.path, shard.text_path, ids=ids, name=shard.name)
    source = open_source(shard.path, format=plan.format, split=plan.split, **plan.options)
    if source.facts["format"] == "table" and "id" not in source.rows.roles:
        ids = [f"{shard.name}/{pair_id}" for pair_id in source.pairs.pair_ids]
        return replace(source, pairs=replace(source.pairs, pair_ids=ids))
    return source


def prepare_shard(plan: ShardPlan, number: int) -> None:
    """Extract the features of a shard, or continue, and write its contribution to the sample."""
    shard = open_shard(plan, number)
    folder = plan.folder(number)
    folder.mkdir(parents=True, exist_ok=True)
    pairs = None if shard.embedded is None else shard.embedded.pairs
    write_contribution(folder / "sample", pairs, plan.shard_sample, seed=plan.settings.seed)
    count, images = (0, 0) if pairs is None else (len(pairs), pairs.num_images)
    plan.save_prepared(number, {"pairs": count, "images": images, "unusable": shard.unusable})


def score_shard(plan: ShardPlan, number: int) -> None:
    """Score the pairs of a shard and write its part, in one thread, so that the result does not vary."""
    shard = open_shard(plan, number)
    with one_thread():
        table, facts = _part(shard, SampleModel.load(plan.model, plan.key), plan.shards[number].name)
    plan.part(number).parent.mkdir(parents=True, exist_ok=True)
    write_table(table, plan.part(number))
    plan.save_scored(number, facts)


def _part(shard: OpenShard, model: SampleModel, name: str) -> tuple[pa.Table, dict[str, Any]]:
    """The table of a shard, in which no pair is flagged yet, and its figures."""
    pa = arrow()
    source, embedded, unusable = shard
    if source is None:  # no row can be read: a table of one row
        nulls = {column: pa.nulls(1) for column in (*IDENTITY, *VERDICT)}
        table = pa.table({**nulls, "problem": pa.array([f"{name}: {unusable}"])})
        facts = {"rows": 1, "images": 0, "scored": 0, "problems": {UNUSABLE: 1}}
        return table, {**facts, "groups": [0, 0], "duplicates": [0, 0]}
    if embedded is None:
        problems = {k: Problem(UNUSABLE, unusable) for k in range(len(source.pairs))}
        embedded = EmbeddedPairs(source.pairs, np.zeros(0, dtype=np.int64), problems)
        duplicates = dict.fromkeys(
            ("duplicate_text_group", "duplicate_image_group"), np.full(len(source.pairs), MISSING)
        )
        scores, better, issues = PairScores.unscored(len(source.pairs)), None, None
    else:
        duplicates = find_duplicates(embedded.pairs, source.has_texts)
        scores, better = model.score(embedded.pairs)
        issues = find_issues(embedded, duplicates, has_texts=source.has_texts)
    is_mismatch = np.zeros(len(scores), dtype=bool)
    table = build_table(source, embedded, scores, is_mismatch, duplicates, better, issues=issues)
    return with_column(table, "is_mismatch", pa.nulls(len(table), pa.bool_())), {
        "rows": len(table),
        "images": source.pairs.num_images,
        "scored": int(scores.is_scored.sum()),
        "problems": count_problems(source, embedded),
        "issues": count_issues(issues),
        "groups": [int(group.max(initial=MISSING)) + 1 for group in duplicates.values()],
        "duplicates": [int((group != MISSING).sum()) for group in duplicates.values()],
    }
