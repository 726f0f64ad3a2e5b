"""Ensembles of two backbones: the mean similarity of two finished cells that differ in nothing but the backbone.

    S = (σ(a) + σ(b)) / 2

with a, b the logits of two separately trained models on the test split, as in the model `sgraf` and in the published
SGRAF. Ranked is the logit of S (`logit_of_mean`), as in `srem eval A B`: it is exact where sigmoids round to 0 or 1.
Members are fixed by name, so nothing is selected on the test split.

The row of a mean is kept like that of a cell, under a hash of its members' rows: after a member ran again, the mean is
computed again. Then the members' scores may be deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sremkit.bench.grid import cell_key, final_metrics, read_row, row_file, scores_file
from sremkit.config.recipes import DataSettings, Recipe
from sremkit.data.pairs import Pairs
from sremkit.data.training_pairs import read_split
from sremkit.errors import UserError
from sremkit.evaluation import retrieval_recall_folds
from sremkit.io import atomic_write, digest
from sremkit.models.ensemble import logit_of_mean


@dataclass(frozen=True)
class Mean:
    """Two cells to average, with the labels of the row."""

    labels: dict[str, Any]
    members: tuple[Recipe, Recipe]

    @property
    def member_keys(self) -> tuple[str, str]:
        first, second = self.members
        return cell_key(first), cell_key(second)


def backbones_to_train(names: Sequence[str]) -> list[str]:
    """The backbones of a grid, each once: single ones, and the members of means such as "saf+sgr"."""
    return list(dict.fromkeys(part for name in names for part in (_members(name) or (name,))))


def means_of(cells: Sequence[tuple[dict[str, Any], Recipe]], names: Sequence[str]) -> list[Mean]:
    """The means among `names`, for every method, noise rate and seed of the cells.

    Args:
        cells: with those of all members.
        names: backbones, of which those with a "+" are means.
    """
    recipes = {(labels["backbone"], _shared_labels(labels)): (labels, recipe) for labels, recipe in cells}
    means = []
    for name in dict.fromkeys(names):
        members = _members(name)
        for labels, recipe in cells:
            if members is not None and labels["backbone"] == members[0]:
                other_labels, other = recipes[members[1], _shared_labels(labels)]
                adapted = [own for own in (labels, other_labels) if own.get("adapted")]
                means.append(Mean({**labels, **(adapted or [labels])[0], "backbone": name}, (recipe, other)))
    return means


def keys_to_keep(means: Sequence[Mean], folder: Path) -> set[str]:
    """The keys of the cells whose scores are needed: members of means that are not computed yet."""
    return {key for mean in means if not _is_done(mean, folder) for key in mean.member_keys}


def mean_rows(means: Sequence[Mean], folder: Path) -> list[dict[str, Any]]:
    """A row for each mean, computed from its members' scores or read from the folder."""
    splits: dict[str, Pairs] = {}  # by data settings: hundreds of means share a few

    def test_split(data: DataSettings) -> Pairs:
        if repr(data) not in splits:
            splits[repr(data)] = read_split(data, data.test_split)
        return splits[repr(data)]

    rows = []
    for mean in means:
        if not _is_done(mean, folder):
            row = {"key": _key(mean, folder), **_average(mean, folder, test_split)}
            atomic_write(row_file(folder, row["key"]), json.dumps(row))
        counts = _epoch_counts([read_row(folder, key) for key in mean.member_keys])
        rows.append({**mean.labels, **counts, **read_row(folder, _key(mean, folder))})
    return rows


def _average(mean: Mean, folder: Path, test_split: Callable[[DataSettings], Pairs]) -> dict[str, Any]:
    rows = [read_row(folder, key) for key in mean.member_keys]
    test, other = (test_split(member.data) for member in mean.members)
    name = mean.labels["backbone"]
    if list(test.pair_ids) != list(other.pair_ids) or list(test.image_ids) != list(other.image_ids):
        raise UserError(f"{name}: the two recipes test on different pairs; a mean needs the same ones in one order")
    if rows[0]["noise_hash"] != rows[1]["noise_hash"]:
        raise UserError(f"{name}: the two recipes were trained with different noise; a mean needs the same")
    folds = [member.data.test_folds or 1 for member in mean.members]
    scores = [_read_scores(folder, row, test, f) for row, f in zip(rows, folds, strict=True)]
    return {
        "members": "+".join(mean.member_keys),
        **final_metrics(logit_of_mean(*scores), test, mean.members[0].data),
        "networks": sum(row["networks"] for row in rows),
        **{key: value for key, value in rows[0].items() if key.startswith("noise_")},
    }


def _epoch_counts(members: Sequence[dict[str, Any]]) -> dict[str, int]:
    """The epochs of the members, where they agree."""
    names = ["epochs", "warmup_epochs"]
    counts = [{name: row[name] for name in names if name in row} for row in members]
    return counts[0] if counts[0] == counts[1] else {}


def _read_scores(folder: Path, row: dict[str, Any], test: Pairs, folds: int) -> Tensor:
    """The scores of a member (n, m), float64; scores that do not reproduce its row are refused."""
    file = scores_file(folder, row["key"])
    scores = torch.from_numpy(np.load(file))
    recalls = retrieval_recall_folds(scores, test.image_of_text, folds=folds)
    if recalls["rsum"] != row["test_rsum"]:
        raise UserError(f"{file} does not give the recalls of {row['key']}.json; delete it and start again")
    return scores.double()


def _is_done(mean: Mean, folder: Path) -> bool:
    finished = all(row_file(folder, key).exists() for key in mean.member_keys)
    return finished and row_file(folder, _key(mean, folder)).exists()


def _key(mean: Mean, folder: Path) -> str:
    members = [row_file(folder, key).read_bytes() for key in mean.member_keys]
    return digest(b"\n".join(members))


def _members(name: str) -> tuple[str, str] | None:
    """The two backbones of a mean; None for the name of a backbone."""
    if "+" not in name:
        return None
    parts = name.split("+")
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise UserError(f"'{name}' is not a mean: two different backbones are joined by a plus, as in 'saf+sgr'")
    return parts[0], parts[1]


def _shared_labels(labels: dict[str, Any]) -> tuple[Any, ...]:
    """The labels that the members of a mean have in common."""
    return tuple(labels[key] for key in ("data", "method", "rate", "seed"))
