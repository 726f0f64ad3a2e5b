"""The second work on a shard: the verdict on each of its pairs, written as one Parquet part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sremkit.audit.by_shard.model import FoldJudge, Heard, Model
from sremkit.audit.by_shard.model_store import read_model
from sremkit.audit.by_shard.plan import Plan
from sremkit.audit.by_shard.preparing import UNUSABLE, OpenShard, Unreadable, open_shard
from sremkit.audit.by_shard.sample import picture_keys
from sremkit.audit.judging import no_verdicts
from sremkit.audit.near_duplicates import ALONE
from sremkit.audit.stages import find_duplicates
from sremkit.audit.table import (
    IDENTITY,
    VERDICT,
    BetterFits,
    Duplicates,
    arrow,
    build_table,
    was_judged,
    write_table,
)
from sremkit.audit.vectors import read_vectors
from sremkit.audit.verdicts import NOBODY, Verdicts
from sremkit.data.pairs import Pairs

if TYPE_CHECKING:
    import pyarrow as pa


def judge_part(plan: Plan, number: int) -> None:
    """Judge a shard and write its part. One thread does it, so the result is the same whoever runs it."""
    opened = open_shard(plan, number)
    with _one_thread():
        table, facts = _part(opened, read_model(plan.model, plan.key), plan.shards[number].name)
    plan.part(number).parent.mkdir(parents=True, exist_ok=True)
    write_table(table, plan.part(number))
    plan.save_judged(number, facts)


def _part(opened: OpenShard | Unreadable, model: Model, name: str) -> tuple[pa.Table, dict[str, Any]]:
    if isinstance(opened, Unreadable):
        facts = {"rows": 1, "images": 0, "judged": 0, "problems": {UNUSABLE: 1}, "groups": [0, 0]}
        return _only_a_problem(f"{name}: {opened.unusable}"), {**facts, "duplicates": [0, 0]}
    pairs = opened.judgeable.pairs
    if opened.unusable or not model.judges:
        verdicts, better = no_verdicts(len(pairs), model.scores.note), _nothing_better(len(pairs))
    else:
        verdicts, better = judge_pairs(pairs, model)
    if opened.unusable:
        duplicates = Duplicates(np.full(len(pairs), ALONE), np.full(len(pairs), ALONE))
    else:
        duplicates = find_duplicates(pairs, opened.source.has_texts)
    undecided = np.zeros(len(pairs), dtype=bool)
    table = build_table(opened.source, opened.judgeable, verdicts, undecided, duplicates, better)
    place = table.schema.get_field_index("is_mismatch")
    nobody_knows_yet = arrow().nulls(len(table), table.schema.field(place).type)
    table = table.set_column(place, table.schema.field(place), nobody_knows_yet)
    reasons = Counter(problem.reason for problem in opened.source.rows.problems.values())
    reasons.update(problem.reason for problem in opened.judgeable.problems.values())
    groups = [int(of.max(initial=ALONE)) + 1 for of in (duplicates.text_group, duplicates.image_group)]
    facts = {
        "rows": len(table),
        "images": opened.source.pairs.num_images,
        "judged": 0 if opened.unusable else int(was_judged(verdicts).sum()),
        "problems": dict(reasons),
        "groups": groups,
        "duplicates": [len(table[f"duplicate_{kind}_group"].drop_null()) for kind in ("text", "image")],
    }
    return table, facts


def judge_pairs(pairs: Pairs, model: Model) -> tuple[Verdicts, BetterFits]:
    """The verdict on each pair by the witnesses that have not seen its picture."""
    vectors, image_key = read_vectors(pairs), picture_keys(pairs)
    image_of_text = vectors.image_of_text.numpy()
    fold = model.fold_of(image_key)[image_of_text]
    verdicts, better = no_verdicts(len(pairs), model.scores.note), _nothing_better(len(pairs))
    for number, judge in enumerate(model.judges):
        rows = np.flatnonzero(fold == number)
        if len(rows) == 0:
            continue
        used, image_of_row = np.unique(image_of_text[rows], return_inverse=True)
        heard = judge.hear(
            vectors.images[torch.from_numpy(used)],
            vectors.texts[torch.from_numpy(rows)],
            torch.from_numpy(image_of_row.reshape(-1)),
            image_key[used],
        )
        score = model.score(heard.standing.statistic, number)
        verdicts.mismatch_score[rows] = score
        for name in ("energy_i2t", "energy_t2i", "rank_i2t", "rank_t2i"):
            getattr(verdicts, name)[rows] = getattr(heard.standing, name)
        verdicts.fold[rows] = number
        suspicious = np.flatnonzero(model.suspicious(score))
        _name_better(better, heard, judge, suspicious, rows, [pairs.image_ids[k] for k in used])
    return verdicts, better


def _name_better(
    better: BetterFits,
    heard: Heard,
    judge: FoldJudge,
    suspicious: np.ndarray,
    rows: np.ndarray,
    image_ids: list[str],
) -> None:
    """Fill in, for suspicious ones among `rows`, the words for what fits better."""
    better_text, better_image = heard.better(suspicious)
    pool = judge.pool
    for k, text, image in zip(rows[suspicious], better_text.tolist(), better_image.tolist(), strict=True):
        if text != NOBODY:
            better.text[k] = pool.captions[text - heard.num_pairs] or None
            better.text_id[k] = pool.pair_ids[text - heard.num_pairs]
        if image != NOBODY:
            known = image < len(image_ids)
            better.image[k] = image_ids[image] if known else pool.image_ids[image - len(image_ids)]


def _nothing_better(count: int) -> BetterFits:
    return BetterFits([None] * count, [None] * count, [None] * count)


def _only_a_problem(sentence: str) -> pa.Table:
    """One row that stands for a shard of which no row could be read."""
    pa = arrow()
    columns = {name: pa.nulls(1) for name in (*IDENTITY, *VERDICT)}
    return pa.table({**columns, "problem": pa.array([sentence])})


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
