"""Finished folds on disk, so that an interrupted audit goes on where it stopped.

A fold is a folder of safetensors and JSON that appears only when it is complete. It carries a key made of all
that it depends on; with other data or other settings it does not fit and is judged anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from pathlib import Path

import torch

from sremkit.audit.competition import Standing
from sremkit.audit.fold_judging import JudgedFold
from sremkit.audit.judging_settings import JudgingSettings
from sremkit.audit.vectors import Vectors
from sremkit.audit.word_judging import JudgedWords
from sremkit.audit.word_witness import LocalView
from sremkit.training.checkpoint import is_valid, read_checkpoint, write_checkpoint
from sremkit.version import __version__

WORDS = "words_"  # before the names of what the word witness said


class FoldStore:
    """Keeps the folds of one judging in a folder; without a folder it keeps nothing."""

    def __init__(
        self, folder: Path | None, vectors: Vectors, settings: JudgingSettings, view: LocalView | None = None
    ) -> None:
        self.folder = folder
        self.key = "" if folder is None else _key(vectors, settings, view)

    def load(self, number: int) -> JudgedFold | None:
        """The finished fold, or None if there is none that fits."""
        if self.folder is None or not is_valid(self._path(number)):
            return None
        tensors, facts = read_checkpoint(self._path(number))
        if facts.get("key") != self.key:
            return None
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        standing = Standing(**{f.name: arrays.pop(f.name) for f in fields(Standing)})
        words = None
        if facts["has_words"]:
            words = JudgedWords(**{f.name: arrays.pop(WORDS + f.name) for f in fields(JudgedWords)})
        return JudgedFold(
            standing=standing,
            candidates=facts["candidates"],
            words=words,
            **arrays,
        )

    def save(self, number: int, fold: JudgedFold) -> None:
        if self.folder is None:
            return
        arrays = asdict(fold)
        arrays |= arrays.pop("standing")
        candidates, words = arrays.pop("candidates"), arrays.pop("words")
        arrays |= {WORDS + name: array for name, array in (words or {}).items()}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        facts = {"key": self.key, "candidates": candidates, "has_words": words is not None}
        write_checkpoint(self._path(number), tensors, facts)

    def _path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"fold-{number}"


def _key(vectors: Vectors, settings: JudgingSettings, view: LocalView | None) -> str:
    facts = {
        "version": __version__,
        "holds": [field.name for kept in (JudgedFold, JudgedWords) for field in fields(kept)],
        "data": vectors.fingerprint(),
        "local": None if view is None else view.fingerprint(vectors.readable_images()),
        "settings": settings.of_a_fold(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
