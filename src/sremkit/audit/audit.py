"""Audit pairs in three lines.

    audit = sremkit.Audit.from_csv("pairs.csv")
    audit.find()
    audit.report()

The verdicts are in `audit.get_issues()`, the figures in `audit.summary`, everything in the audit's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.audit.own_rows import NO_PAIR
from sremkit.audit.preparation import Encoders, Progress
from sremkit.audit.report import write_report
from sremkit.audit.sources import (
    Source,
    open_source,
    source_of_embeddings,
    source_of_pairs,
    source_of_run,
)
from sremkit.audit.stages import Choice, Finished, Task, judge_by_cross_fitting, run_stages
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError, UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL.Image import Image


class Audit:
    """Finds the wrong pairs in anybody's data, without looking at any truth.

    Rows that cannot be read are no reason to stop: they stay in the table, with what is wrong with them.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.out: Path | None = None
        self._finished: Finished | None = None

    @classmethod
    def open(
        cls, path: str | Path, *, format: str | None = None, split: str | None = None, **options: Any
    ) -> Audit:
        """Pairs in any format that `srem list formats` names, recognised where it is not named.

        Args:
            split: only this one; by default all.
            options: the format's own.
        """
        return cls(open_source(path, format=format, split=split, **options))

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        *,
        image: str | None = None,
        text: str | None = None,
        id: str | None = None,
        image_root: str | Path | None = None,
        **options: Any,
    ) -> Audit:
        """A CSV or TSV file: the columns of picture paths, captions and ids, where they have unusual names."""
        named: dict[str, Any] = {"image": image, "text": text, "id": id, "image_root": image_root}
        return cls.open(path, format="table", **named, **options)

    @classmethod
    def from_parquet(cls, path: str | Path, **options: Any) -> Audit:
        """A Parquet file; options as for `from_csv`."""
        return cls.open(path, format="table", **options)

    @classmethod
    def from_folder(cls, path: str | Path, **options: Any) -> Audit:
        """A folder of pictures, each with a .txt file of the same name."""
        return cls.open(path, format="folder", **options)

    @classmethod
    def from_webdataset(cls, path: str | Path, **options: Any) -> Audit:
        """Tar shards as img2dataset writes them: one, a folder of them, or shard-{000..003}.tar."""
        return cls.open(path, format="webdataset", **options)

    @classmethod
    def from_json(cls, path: str | Path, **options: Any) -> Audit:
        """A Karpathy split file or COCO's captions; image_root= says where the pictures lie."""
        return cls.open(path, **options)

    @classmethod
    def from_embeddings(
        cls,
        image_emb: np.ndarray | str | Path,
        text_emb: np.ndarray | str | Path,
        *,
        ids: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
    ) -> Audit:
        """Vectors of any widths, as arrays or .npy files; row k of both is pair k."""
        return cls(source_of_embeddings(image_emb, text_emb, ids=ids, texts=texts))

    @classmethod
    def from_run(cls, folder: str | Path) -> Audit:
        """The training pairs of a run of `srem train`, as they were given to it."""
        return cls(source_of_run(folder))

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> Audit:
        """Pairs that are in memory already."""
        return cls(source_of_pairs(pairs))

    def find(
        self,
        out: str | Path | None = None,
        *,
        precision: float | None = None,
        fraction: float | None = None,
        threshold: float | None = None,
        encoder: str | Path | None = None,
        words: bool = False,
        seed: int = 0,
        workers: int | None = None,
        progress: Progress | None = None,
        say: Callable[[str], None] | None = None,
    ) -> Audit:
        """Judge every pair. Stopped at any moment, the same call goes on where it was.

        Args:
            out: folder for everything; by default one called NAME-audit in the current folder.
            precision: call mismatches so that this share of them is expected to be wrong; 0.95 by default.
            fraction: or call this share of all pairs, the worst.
            threshold: or call those whose mismatch score is lower.
            encoder: folder of a CLIP or SigLIP model of transformers, in the place of the default encoders.
            words: also look for captions that are wrong in one word; takes some minutes for every 10,000 pairs.
            workers: processes that extract features; by default one for every core.
            progress: is told the stage, how much of it is done, and how much there is.
            say: is told sentences for people, such as that the input has changed.
        """
        choice = Choice.of(precision, fraction, threshold)
        self.out = Path(out) if out is not None else Path(f"{self.source.pairs.name}-audit")
        task = Task(
            out=self.out,
            choice=choice,
            encoders=self._encoders(encoder),
            judge=self._judge,
            words=words,
            seed=seed,
            workers=workers,
            progress=progress,
            say=say or (lambda sentence: None),
        )
        self._finished = run_stages(self.source, task)
        return self

    def get_issues(self, *, mismatches_only: bool = False) -> pa.Table:
        """Every row with its verdict, worst first if only mismatches are asked for."""
        table = self._result().table
        if not mismatches_only:
            return table
        wrong = table.filter(table["is_mismatch"])
        return wrong.sort_by("mismatch_score")

    @property
    def summary(self) -> dict[str, Any]:
        """Estimated noise rate with its interval, counts, settings, seconds a stage."""
        return self._result().summary

    @property
    def was_complete(self) -> bool:
        """Whether the folder held this very audit before `find` was called."""
        return self._result().was_complete

    def report(self) -> Path:
        """Write report.html, one file that opens anywhere; returns its path."""
        self._result()
        assert self.out is not None
        has_pictures = self.source.pairs.images is not None
        return write_report(self.out, picture_of=self.picture_of if has_pictures else None)

    def picture_of(self, row: int) -> Image | None:
        """The picture of a row of the table; None where there is none or it cannot be read."""
        pairs, number = self.source.pairs, int(self.source.rows.pair_of_row[row])
        if pairs.images is None or number == NO_PAIR:
            return None
        try:
            return pairs.images.open(int(pairs.image_of_text[number]))
        except DataError:
            return None

    def _result(self) -> Finished:
        if self._finished is None:
            raise UserError("nothing has been judged yet; call find() first")
        return self._finished

    def _encoders(self, folder: str | Path | None) -> Encoders:
        if folder is None:
            return Encoders.default()
        from sremkit.features.clip_folder import open_encoders

        return Encoders(*open_encoders(folder))

    def _judge(self, *args: Any, **options: Any) -> Any:
        return judge_by_cross_fitting(*args, **options)
