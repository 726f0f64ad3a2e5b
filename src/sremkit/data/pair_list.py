"""Pairs as a reader comes upon them, checked one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from sremkit.data.pairs import Pairs, Problems
from sremkit.errors import DataError


class PairList:
    """Collects the good pairs and reports the others; an image is numbered when its first pair comes.

    Attributes:
        rows: the source row of each pair, to find its text features.
        image_rows: the source row of each image's first pair, to find its image features.
    """

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.rows: list[int] = []
        self.image_rows: list[int] = []
        self._texts: list[str] = []
        self._pair_ids: dict[str, None] = {}  # an ordered set
        self._image_of_text: list[int] = []
        self._image_numbers: dict[str, int] = {}

    def add(self, where: str, *, pair_id: str, text: object, image_id: str, row: int = -1) -> bool:
        """Take this pair, or report what is wrong with it and return False."""
        if text is not None and not isinstance(text, str):
            self.problems.found(where, "the caption is not text", f"write words instead of {text!r:.40}")
            return False
        text = (text or "").strip()
        if not text:
            self.problems.found(where, "the caption is empty", "write one or remove the pair")
            return False
        if pair_id in self._pair_ids:
            self.problems.found(
                where, "the id has appeared before", f"give one of the pairs '{pair_id}' another id"
            )
            return False
        number = self._image_numbers.setdefault(image_id, len(self._image_numbers))
        if number == len(self.image_rows):
            self.image_rows.append(row)
        self._pair_ids[pair_id] = None
        self._texts.append(text)
        self._image_of_text.append(number)
        self.rows.append(row)
        return True

    @property
    def image_ids(self) -> list[str]:
        return list(self._image_numbers)

    def pairs(self, *, name: str, split: str, **sources: Any) -> Pairs:
        """Everything collected; `sources` are the pictures and features that `Pairs` takes."""
        skipped = self.problems.skipped()
        if not self._texts and skipped.count:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in skipped.reasons.most_common(3))
            raise DataError(
                f"{name} ({split}) holds no pairs that can be used; {skipped.count:,} were left out ({reasons}), "
                f"the first because {skipped.examples[0]}"
            )
        return Pairs(
            name=name,
            split=split,
            pair_ids=list(self._pair_ids),
            texts=self._texts,
            image_of_text=np.array(self._image_of_text, dtype=np.int64),
            image_ids=self.image_ids,
            skipped=skipped,
            source_rows=None if -1 in self.rows else np.array(self.rows, dtype=np.int64),
            **sources,
        )
