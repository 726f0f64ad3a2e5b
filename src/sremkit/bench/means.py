"""The mean of two backbones: two finished cells of a grid that differ in nothing else, asked together.

    S = (σ(a) + σ(b)) / 2

with a, b the logits that two separately trained models give to the test split. Averaged are similarities, which
are the logits' sigmoids, as in the model `sgraf` and in the published SGRAF; ranked is the logit of that
mean, which is exact also where sigmoids round to 0 or 1. Members are fixed by their names, so nothing is chosen here,
least of all on the test split.

A mean's row is kept like that of a cell, under the hash of its members' rows: where a member ran again, the mean is
made again. Once it is made, the members' scores may be deleted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sremkit.bench.grid import cell_key, final_metrics, read_row, row_file, scores_file
from sremkit.data.pairs import Pairs
from sremkit.errors import UserError
from sremkit.evaluation import retrieval_recall_folds
from sremkit.experiment import read_split
from sremkit.models.beside import logit_of_mean
from sremkit.recipes import DataSettings, Recipe
from sremkit.training.checkpoint import replace_file


@dataclass(frozen=True)
class Mean:
    """Two cells whose similarities are averaged, with the labels of the row."""

    labels: dict[str, Any]
    members: tuple[Recipe, Recipe]

    @property
    def member_keys(self) -> tuple[str, str]:
        first, second = self.members
        return cell_key(first), cell_key(second)


def backbones_to_train(names: Sequence[str]) -> list[str]:
    """The backbones of a grid, each once: those named alone, and the members of means such as "saf+sgr"."""
    return list(dict.fromkeys(part for name in names for part in (_members(name) or (name,))))


def means_of(cells: Sequence[tuple[dict[str, Any], Recipe]], names: Sequence[str]) -> list[Mean]:
    """The means among `names`, for every method, noise rate and seed of the cells.

    Args:
        cells: with those of all members.
        names: backbones, of which those with a "+" are means.
    """
    by_labels = {_rest(labels) | {("backbone", labels["backbone"])}: recipe for labels, recipe in cells}
    means = []
    for name in dict.fromkeys(names):
        members = _members(name)
        for labels, recipe in cells:
            if members is not None and labels["backbone"] == members[0]:
                other = by_labels[_rest(labels) | {("backbone", members[1])}]
                means.append(Mean({**labels, "backbone": name}, (recipe, other)))
    return means


def keys_to_keep(means: Sequence[Mean], folder: Path) -> set[str]:
    """The keys of the cells whose scores are needed: members of means that are not made yet."""
    return {key for mean in means if not _is_made(mean, folder) for key in mean.member_keys}


def mean_rows(means: Sequence[Mean], folder: Path) -> list[dict[str, Any]]:
    """A row for each mean, from its members' scores or as it was kept."""
    splits: dict[str, Pairs] = {}  # by what they are read from: hundreds of means share a few

    def test_split(data: DataSettings) -> Pairs:
        if repr(data) not in splits:
            splits[repr(data)] = read_split(data, data.test_split)
        return splits[repr(data)]

    rows = []
    for mean in means:
        if not _is_made(mean, folder):
            row = {"key": _key(mean, folder), **_average(mean, folder, test_split)}
            replace_file(row_file(folder, row["key"]), json.dumps(row))
        rows.append({**mean.labels, **read_row(folder, _key(mean, folder))})
    return rows


def _average(mean: Mean, folder: Path, test_split: Callable[[DataSettings], Pairs]) -> dict[str, Any]:
    rows = [read_row(folder, key) for key in mean.member_keys]
    test, other = (test_split(member.data) for member in mean.members)
    name = mean.labels["backbone"]
    if list(test.pair_ids) != list(other.pair_ids) or list(test.image_ids) != list(other.image_ids):
        raise UserError(
            f"{name}: the two recipes test on different pairs; a mean needs the same ones in one order"
        )
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


def _read_scores(folder: Path, row: dict[str, Any], test: Pairs, folds: int) -> Tensor:
    """The kept scores of a member (n, m), float64; scores that do not give its row are another run's."""
    file = scores_file(folder, row["key"])
    scores = torch.from_numpy(np.load(file))
    recalls = retrieval_recall_folds(scores, test.image_of_text, folds=folds)
    if recalls["rsum"] != row["test_rsum"]:
        raise UserError(
            f"{file} does not give the recalls of {row['key']}.json beside it; delete it and start again"
        )
    return scores.double()


def _is_made(mean: Mean, folder: Path) -> bool:
    finished = all(row_file(folder, key).exists() for key in mean.member_keys)
    return finished and row_file(folder, _key(mean, folder)).exists()


def _key(mean: Mean, folder: Path) -> str:
    members = [row_file(folder, key).read_bytes() for key in mean.member_keys]
    return hashlib.sha256(b"\n".join(members)).hexdigest()[:16]


def _members(name: str) -> tuple[str, str] | None:
    """The two backbones of a mean; None for the name of a backbone."""
    if "+" not in name:
        return None
    parts = name.split("+")
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise UserError(
            f"'{name}' is not a mean: two different backbones are joined by a plus, as in 'saf+sgr'"
        )
    return parts[0], parts[1]


def _rest(labels: dict[str, Any]) -> frozenset[tuple[str, Any]]:
    """What the members of a mean have in common."""
    return frozenset((key, value) for key, value in labels.items() if key != "backbone")
