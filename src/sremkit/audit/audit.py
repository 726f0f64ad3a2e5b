"""Audit pairs in three lines.

    audit = sremkit.Audit.from_csv("pairs.csv")
    audit.find()
    audit.report()

The verdicts are in `audit.get_issues()`, the figures in `audit.summary`, everything in the audit's folder. Its stages
read, embed, score and write; each continues where an earlier call was interrupted:

    DIR/audit.json       what is audited; written first
    DIR/features/KEY     extracted features, by a hash of the input
    DIR/folds/KEY        finished folds of the cross-fitting
    DIR/pairs.parquet    every input row with its verdict
    DIR/summary.json     the figures; written last, so with it the audit is complete
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sremkit.audit.data_frames import source_of_dataset, source_of_frame
from sremkit.audit.decisions import Decision, decisions_key, labels_of, read_decisions
from sremkit.audit.embed import (
    Encoders,
    InputPairs,
    embed_pairs,
    feature_folders,
    fingerprint_rows,
    inspect_inputs,
    read_vectors,
    score_pairs,
)
from sremkit.audit.export import Counts, export
from sremkit.audit.filtered import filter_note, filtered_before
from sremkit.audit.folder import FEATURES, FOLDS, begin_folder, sole_auditor
from sremkit.audit.inputs import (
    Source,
    open_source,
    reopen_source,
    source_of_embeddings,
    source_of_pairs,
    source_of_run,
)
from sremkit.audit.issues import count_issues, find_duplicates, find_issues
from sremkit.audit.neighbors import explain_flagged
from sremkit.audit.report import write_report
from sremkit.audit.result_table import (
    BEGUN,
    LABELS,
    OWN_PREFIX,
    PAIRS,
    SUMMARY,
    VERSION,
    ResultTable,
    arrow,
    build_table,
    read_summary,
    write_table,
)
from sremkit.audit.scoring.cross_fit import Progress
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.threshold_curve import ThresholdCurve
from sremkit.audit.scoring.types import ScoringSettings
from sremkit.audit.selection import Select
from sremkit.audit.stages import from_zero, timed
from sremkit.audit.summary import count_problems, curve_points, join_notes, rate_facts, versions
from sremkit.audit.then_train import compare_training
from sremkit.data.pairs import MISSING, Pairs
from sremkit.errors import DataError, UserError
from sremkit.extras import require
from sremkit.io import write_json

if TYPE_CHECKING:
    import pyarrow as pa
    from PIL.Image import Image

DATASET_COLUMNS = ("match_probability", "is_mismatch", "better_text", "problem")  # that a dataset gets


class Audit:
    """Finds the mismatched pairs in a collection, without any ground truth.

    Rows that cannot be read do not stop the audit: they stay in the table, with the reason.
    """

    def __init__(self, source: Source | None) -> None:
        self._source = source
        self.out: Path | None = None
        self.was_complete = False  # whether the folder held this very audit before `find` was called
        self._table: pa.Table | None = None
        self._summary: dict[str, Any] = {}

    @property
    def source(self) -> Source:
        """The pairs and their rows; those of a loaded audit are opened where they were."""
        if self._source is None:
            self._source = reopen_source(self._summary.get("source", {}), len(self._result()))
        return self._source

    @classmethod
    def load(cls, folder: str | Path) -> Audit:
        """A finished audit, for its table, summary, report and exports. The pairs are read again only for images."""
        folder = Path(folder)
        audit = cls(None)
        audit._table, audit._summary = ResultTable(folder).read(), read_summary(folder)
        audit.out, audit.was_complete = folder, True
        return audit

    @classmethod
    def open(cls, path: str | Path, *, format: str | None = None, split: str | None = None, **options: Any) -> Audit:
        """Pairs in any format of `srem list formats`, recognised unless it is named, with the format's options."""
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
        """A CSV or TSV file; name the columns of image paths, captions and ids if they are not recognised."""
        return cls.open(path, format="table", image=image, text=text, id=id, image_root=image_root, **options)

    @classmethod
    def from_pandas(
        cls,
        frame: Any,
        *,
        image: str | None = None,
        text: str | None = None,
        id: str | None = None,
        image_root: str | Path | None = None,
        name: str = "frame",
        **options: Any,
    ) -> Audit:
        """A pandas data frame with a column of image paths and one of captions; columns as for `from_csv`.

        Args:
            image_root: folder that relative image paths start from; by default the current folder.
            name: of the collection, for the audit's folder and the report.
        """
        columns = {"image": image, "text": text, "id": id}
        return cls(source_of_frame(frame, name=name, image_root=image_root, **columns, **options))

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        image: str | None = None,
        text: str | None = None,
        id: str | None = None,
        image_root: str | Path | None = None,
        name: str = "dataset",
        **options: Any,
    ) -> Audit:
        """One split of a Hugging Face dataset, whose images are a column of the type `datasets.Image` or paths."""
        columns = {"image": image, "text": text, "id": id}
        return cls(source_of_dataset(dataset, name=name, image_root=image_root, **columns, **options))

    @classmethod
    def from_parquet(cls, path: str | Path, **options: Any) -> Audit:
        """A Parquet file; options as for `from_csv`."""
        return cls.open(path, format="table", **options)

    @classmethod
    def from_folder(cls, path: str | Path, **options: Any) -> Audit:
        """A folder of images, each with a .txt file of the same name."""
        return cls.open(path, format="folder", **options)

    @classmethod
    def from_webdataset(cls, path: str | Path, **options: Any) -> Audit:
        """Tar shards as img2dataset writes them: one, a folder of them, or shard-{000..003}.tar."""
        return cls.open(path, format="webdataset", **options)

    @classmethod
    def from_json(cls, path: str | Path, **options: Any) -> Audit:
        """A Karpathy split file or COCO captions; image_root= is the folder of the images."""
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
        """Vectors of any width, as arrays or .npy files; row k of both is pair k."""
        return cls(source_of_embeddings(image_emb, text_emb, ids=ids, texts=texts))

    @classmethod
    def from_run(cls, folder: str | Path) -> Audit:
        """The training pairs of a run of `srem train`, with the noise that was injected into them."""
        return cls(source_of_run(folder))

    @classmethod
    def from_pairs(cls, pairs: Pairs) -> Audit:
        """Pairs in memory."""
        return cls(source_of_pairs(pairs))

    def find(
        self,
        out: str | Path | None = None,
        *,
        precision: float | None = None,
        fraction: float | None = None,
        threshold: float | None = None,
        encoder: str | Path | None = None,
        seed: int = 0,
        workers: int | None = None,
        reuse: Sequence[str | Path] = (),
        progress: Progress | None = None,
        notify: Callable[[str], None] = lambda message: None,
    ) -> Audit:
        """Score every pair and flag mismatches. An interrupted call is continued by an equal one.

        Args:
            out: folder of the audit; by default NAME-audit in the current folder.
            precision: flag as many pairs as possible with at least this expected precision; 0.95 by default.
            fraction: or flag this fraction of all pairs, those with the lowest scores.
            threshold: or flag the pairs with a lower match probability.
            encoder: folder of a CLIP or SigLIP model of transformers, or a run that fine-tuned one, instead of the
                default encoders. The cosine of its vectors is one more scorer, and the only one of a few hundred pairs.
            workers: processes that extract features; by default one for each core.
            reuse: folders of other audits, or of `srem features`, whose features of the same images and texts are used.
            progress: called with a stage, the number of items done and the total.
            notify: called with messages for the user, such as that the input has changed.
        """
        arrow()  # a missing package is reported now, not after hours of work
        source, rule, encoders = self.source, CutoffRule.of(precision, fraction, threshold), Encoders.open(encoder)
        self.out = Path(out) if out is not None else Path(f"{source.pairs.name}-audit")
        seconds: dict[str, float] = {}

        with timed(seconds, "reading"):
            decisions = read_decisions(self.out)
            inputs = inspect_inputs(source.pairs, encoders, progress)
            identity = {
                "key": inputs.key,
                "rows_key": fingerprint_rows(source.rows),
                "seed": seed,
                "cutoff": rule.as_dict(),
                "decisions": decisions_key(decisions),
            }
        if self._load_complete(identity):
            return self
        begin_folder(self.out, sharded=False)
        with sole_auditor(self.out):
            self._begin(inputs, notify)
            self._compute(
                inputs, encoders, rule, decisions, identity, seconds, workers=workers, reuse=reuse, progress=progress
            )
        return self

    def _compute(
        self,
        inputs: InputPairs,
        encoders: Encoders,
        rule: CutoffRule,
        decisions: Mapping[str, Decision],
        identity: dict[str, Any],
        seconds: dict[str, float],
        *,
        workers: int | None,
        reuse: Sequence[str | Path],
        progress: Progress | None,
    ) -> None:
        """Embed, score and write; `identity` goes into the summary, `seconds` gets those of each stage."""
        source, seed = self.source, identity["seed"]
        assert self.out is not None

        with timed(seconds, "features"):
            folder = self.out / FEATURES / inputs.key
            reused = [folder for path in reuse for folder in feature_folders(path)]
            embedded = embed_pairs(inputs, folder, encoders, workers=workers, progress=progress, reuse=reused)

        with timed(seconds, "scoring"):
            zero_shot = encoders.share_a_space(inputs.missing)
            settings = ScoringSettings(seed=seed, zero_shot=zero_shot)
            folder = self.out / FOLDS / inputs.key
            folder.mkdir(parents=True, exist_ok=True)
            label = labels_of(embedded.pairs, decisions, has_texts=source.has_texts) if decisions else None
            scores = score_pairs(embedded.pairs, settings, label=label, folder=folder, progress=from_zero(progress))

        with timed(seconds, "table"):
            is_mismatch = scores.flag(rule)
            known = scores.match_prob[scores.is_scored]
            threshold = rule.cutoff(lambda: [known]) if rule.applies(scores.noise_rate) else 0.0
            curve = None if scores.noise_rate is None else ThresholdCurve([known])
            duplicates = find_duplicates(embedded.pairs, source.has_texts)
            kept = self.out / FEATURES / inputs.key / "image_issues.json"
            issues = find_issues(
                embedded, duplicates, has_texts=source.has_texts, kept=kept, progress=from_zero(progress)
            )
            explained = explain_flagged(
                embedded.pairs, scores.match_prob, is_mismatch, scores.is_scored, has_texts=source.has_texts
            )
            self._table = build_table(
                source,
                embedded,
                scores,
                is_mismatch,
                duplicates,
                issues=issues,
                explained=explained,
                curve=curve,
                label=label,
            )
            write_table(self._table, self.out / PAIRS)

        flagged = scores.match_prob[is_mismatch]
        before = filtered_before(source)
        # Without a noise rate the scores are ranks, and their mean is no expected precision.
        is_calibrated = scores.noise_rate is not None and len(flagged) > 0
        self._summary = {
            "pairs": len(source.rows),
            "images": source.pairs.num_images,
            "scored": int(scores.is_scored.sum()),
            "mismatches": len(flagged),
            "expected_precision": float((1 - flagged).mean()) if is_calibrated else None,
            **rate_facts(
                scores.noise_rate,
                scores.near,
                scored=int(scores.is_scored.sum()),
                flagged=len(flagged),
                expected_wrong=float((1 - flagged).sum()),
                before=before,
            ),
            "note": join_notes(scores.note, "" if before is None else filter_note(before)),
            "threshold": float(np.clip(threshold, 0, 1)),
            "curve": curve_points(curve, scores.noise_rate, scores.near, scored=len(known)),
            "separation": scores.separation,
            "problems": count_problems(source, embedded),
            "issues": count_issues(issues),
            "duplicates": {k: int((duplicates[f"duplicate_{k}_group"] != MISSING).sum()) for k in ("text", "image")},
            "labels": None if label is None else {name: int((label == k).sum()) for k, name in LABELS.items()},
            "candidates": scores.candidates,
            **identity,
            "settings": {"seed": seed, **encoders.describe(inputs.missing)},
            "encoder": encoders.folder,
            "source": source.facts,
            "extracted": {k: {**asdict(work), "seconds": round(work.seconds, 2)} for k, work in embedded.work.items()},
            "seconds": {stage: round(elapsed, 2) for stage, elapsed in seconds.items()},
            "versions": versions(),
        }
        write_json(self.out / SUMMARY, self._summary)
        self.was_complete = False

    def compare_training(
        self, *, workers: int | None = None, progress: Progress | None = None
    ) -> dict[str, Any] | None:
        """What cleaning brings: recall of small models trained on all pairs, and on those that are not flagged.

        The result, see `sremkit.audit.then_train`, is also written to the summary, as "training"; None where the pairs
        are too few, or where none is flagged.
        """
        table, source = self._result(), self.source
        assert self.out is not None
        if "sharded" in self._summary:
            raise UserError(
                "--then-train needs all pairs in memory, and --sharded holds one shard; leave out one of them"
            )
        if "training" in self._summary:
            known: dict[str, Any] | None = self._summary["training"]
            return known
        with timed(self._summary["seconds"], "training"):
            encoders = Encoders.open(self._summary["encoder"])
            inputs = inspect_inputs(source.pairs, encoders)
            folder = self.out / FEATURES / inputs.key
            embedded = embed_pairs(inputs, folder, encoders, workers=workers, progress=progress)
            row_of_pair = np.full(len(source.pairs), MISSING)
            used = np.flatnonzero(source.rows.pair_of_row != MISSING)
            row_of_pair[source.rows.pair_of_row[used]] = used
            verdict = table["is_mismatch"].to_numpy(zero_copy_only=False)  # None for a row without a score
            kept = np.array(
                [verdict[row] is not None and not verdict[row] for row in row_of_pair[embedded.pair_numbers]]
            )
            show = from_zero(progress)
            on_run = None if show is None else partial(show, "training with and without flagged pairs")
            result = None
            if self._summary["mismatches"]:
                vectors = read_vectors(embedded.pairs)
                result = compare_training(vectors, kept, seed=self._summary["seed"], on_run=on_run)
        self._summary["training"] = result
        self._summary["seconds"]["training"] = round(self._summary["seconds"]["training"], 2)
        write_json(self.out / SUMMARY, self._summary)
        return result

    def get_issues(self, *, mismatches_only: bool = False) -> pa.Table:
        """Every row with its verdict; or only the mismatches, the lowest score first."""
        table = self._result()
        return table.filter(table["is_mismatch"]).sort_by("match_probability") if mismatches_only else table

    @property
    def summary(self) -> dict[str, Any]:
        """Estimated noise rate with its interval, counts, settings, and seconds of each stage."""
        self._result()
        return self._summary

    def to_pandas(self, *, mismatches_only: bool = False) -> Any:
        """`get_issues` as a pandas data frame, indexed by the rows of the input."""
        require("pandas", extra="pandas", purpose="return a data frame")
        table = self._result().append_column("row", arrow().array(np.arange(len(self._result()))))
        if mismatches_only:
            table = table.filter(table["is_mismatch"]).sort_by("match_probability")
        return table.to_pandas().set_index("row").rename_axis(None)

    def add_to_dataset(self, dataset: Any, *, keep_only: bool = False) -> Any:
        """The Hugging Face dataset that was audited with the verdict of each row as new columns.

        Args:
            keep_only: only the rows that have a score and are not flagged as mismatches.
        """
        table = self._result()
        if len(table) != len(dataset):
            raise UserError(f"the audit has {len(table):,} rows and the dataset {len(dataset):,}; give the audited one")
        for name in DATASET_COLUMNS:
            taken = name in dataset.column_names
            dataset = dataset.add_column(OWN_PREFIX + name if taken else name, table[name].to_pylist())
        kept = table["problem"].is_null().to_numpy() & ~np.array(table["is_mismatch"].fill_null(False))
        return dataset.select(np.flatnonzero(kept)) if keep_only else dataset

    def export(
        self,
        out: str | Path,
        *,
        format: str | None = None,
        select: Select = "keep",
        precision: float | None = None,
        fraction: float | None = None,
        threshold: float | None = None,
        split: str | None = None,
    ) -> Counts:
        """Write the pairs to keep, or others, in the format that the file's ending names.

        Args:
            format: one of `sremkit.audit.export.EXPORTS`, if the ending does not decide.
            select: "keep", "drop" or "all".
            precision, fraction, threshold: another cutoff than that of the audit, as for `find`.
            split: only the pairs of this split.
        """
        self._result()
        assert self.out is not None
        rule = (precision, fraction, threshold)
        cutoff = None if rule == (None, None, None) else CutoffRule(*rule)
        return export(self.out, out, format=format, select=select, cutoff=cutoff, split=split)

    def report(self) -> Path:
        """Write report.html, one file that loads nothing, and return its path."""
        self._result()
        assert self.out is not None
        if "sharded" in self._summary:  # written when the shards were merged
            return self.out / "report.html"
        return write_report(self.out, image_of=self.image_of if self._has_images() else None)

    def _has_images(self) -> bool:
        try:
            return self.source.pairs.images is not None
        except UserError:  # the input of a loaded audit is gone
            return False

    def image_of(self, row: int) -> Image | None:
        """The image of a row of the table; None where there is none or it cannot be read."""
        if not self._has_images():
            return None
        pairs, number = self.source.pairs, int(self.source.rows.pair_of_row[row])
        if pairs.images is None or number == MISSING:
            return None
        try:
            return pairs.images.open(int(pairs.image_of_text[number]))
        except DataError:
            return None

    def _result(self) -> pa.Table:
        if self._table is None:
            raise UserError("the pairs have no scores yet; call find() first")
        return self._table

    def _load_complete(self, identity: dict[str, Any]) -> bool:
        """Load an audit that was completed with the same input and settings, if it is intact."""
        assert self.out is not None
        try:
            summary = read_summary(self.out)
            if any(summary.get(name) != value for name, value in identity.items()):
                return False
            if summary.get("words"):  # of an earlier version, which could score single words as well
                return False
            self._table = ResultTable(self.out).read()
        except DataError:  # damaged
            return False
        self._summary, self.was_complete = summary, True
        return True

    def _begin(self, inputs: InputPairs, notify: Callable[[str], None]) -> None:
        """Mark the folder as this audit's; notify if it was begun with another input."""
        out, source = self.out, self.source
        assert out is not None
        before = begin_folder(out, sharded=False)
        if before.get("key", inputs.key) != inputs.key:
            notify(
                f"the input or its encoders have changed since the audit in {out} began "
                f"({before['rows']:,} rows then, {len(source.rows):,} now), so it is made again; "
                f"features of unchanged images and texts are taken from {out / FEATURES}"
            )
        write_json(
            out / BEGUN, {"version": VERSION, "key": inputs.key, "rows": len(source.rows), "source": source.facts}
        )
