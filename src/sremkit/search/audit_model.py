"""The model of an audit: its frozen encoders, and its scorer trained on the pairs that the audit kept.

Each model of an audit's folds has seen a part of the pairs. So an ensemble of ridge CCA and dual encoders is trained on
all pairs that are not flagged, when the index is built. A tenth of the images is held out to weight the scorers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.embed import EmbeddedPairs, Encoders, embed_pairs, inspect_inputs, read_vectors
from sremkit.audit.folder import FEATURES
from sremkit.audit.inputs import Source, open_source, source_of_run
from sremkit.audit.result_table import ResultTable, read_summary
from sremkit.audit.scoring.candidates import EnsembleWeight, PairScorer, ensemble_weights
from sremkit.audit.scoring.dual_encoder import DualEncoderScorer, build_dual_encoder
from sremkit.audit.scoring.fold_model import train_dual_encoders
from sremkit.audit.scoring.ridge_cca import RidgeCCA, fit_ridge_cca
from sremkit.audit.scoring.types import PairVectors, ScoringSettings
from sremkit.data.pairs import MISSING, Pairs
from sremkit.errors import DataError, UserError
from sremkit.io import digest
from sremkit.models.matcher import Encoded
from sremkit.training.checkpoint import prefixed, read_checkpoint, without_prefix, write_checkpoint

if TYPE_CHECKING:
    from PIL.Image import Image

HELD_OUT = 0.1  # fraction of the images
MIN_PAIRS = 50
DUAL_ENCODERS = 2
GIVEN = "features as given"

Progress = Callable[[str, int, int], None]


class AuditModel:
    """Scores images with texts by the audit's ensemble logit, with the collection to search.

    Args:
        kept: (m,) bool: the pairs to train on.
    """

    needs_reranking = False

    def __init__(
        self, vectors: PairVectors, kept: np.ndarray, encoders: Encoders, key: str, progress: Progress | None = None
    ) -> None:
        self.name = "audit"
        self.vectors = vectors
        self.kept = kept
        self.encoders = encoders
        self.key = digest([key, digest(kept.tobytes())])
        self.progress = progress
        self.settings = ScoringSettings(dual_encoders=DUAL_ENCODERS)
        self.scorers: Sequence[PairScorer] = ()
        self.weights: Sequence[EnsembleWeight] = ()

    def encode_texts(self, texts: Sequence[str]) -> Encoded:
        return self._texts(torch.from_numpy(self.encoders.texts.encode(texts)))

    def encode_images(self, images: Sequence[Image]) -> Encoded:
        rows = np.stack([self.encoders.images.encode(image).pooled for image in images])
        return self._images(torch.from_numpy(rows))

    def collection_texts(self, rows: np.ndarray) -> Encoded:
        return self._texts(self.vectors.texts[torch.from_numpy(rows)])

    def collection_images(self, rows: np.ndarray) -> Encoded:
        return self._images(self.vectors.images[torch.from_numpy(rows)])

    def text_vectors(self, texts: Encoded) -> Tensor:
        return texts.whole()

    def image_vectors(self, images: Encoded) -> Tensor:
        return images.whole()

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return images.whole() @ texts.whole().T

    def fit(self, pairs: Pairs) -> None:
        """Train the ensemble on the kept pairs."""
        image_of_text = self.vectors.image_of_text.numpy()
        rng = np.random.default_rng(self.settings.seed)
        held_out_images = rng.random(pairs.num_images) < HELD_OUT
        held_out = held_out_images[image_of_text]
        train, rest = np.flatnonzero(self.kept & ~held_out), np.flatnonzero(self.kept & held_out)
        if len(train) < MIN_PAIRS:
            raise UserError(
                f"the audit kept {int(self.kept.sum())} pairs, too few to learn what fits; audit more pairs"
            )
        steps = None if self.progress is None else lambda done, total: self._report(done, total)
        dual_encoders = train_dual_encoders(self.vectors, train, self.settings, seed=self.settings.seed, on_step=steps)
        rows = torch.from_numpy(train)
        texts, image_of_pair = self.vectors.texts[rows], self.vectors.image_of_text[rows]
        clean_prob = torch.stack([scorer.clean_prob for scorer in dual_encoders]).mean(dim=0)
        self.scorers = [fit_ridge_cca(self.vectors.images, texts, image_of_pair, clean_prob), *dual_encoders]
        encoded = [(s.encode_images(self.vectors.images), s.encode_texts(self.vectors.texts)) for s in self.scorers]
        measured = rest if len(rest) > 1 else train
        negatives = (image_of_text[rng.permutation(measured)], measured)
        self.weights = ensemble_weights(encoded, (image_of_text[measured], measured), negatives)

    def save(self, folder: Path) -> None:
        cca, *dual_encoders = self.scorers
        assert isinstance(cca, RidgeCCA)
        tensors = prefixed("cca", vars(cca))
        for k, scorer in enumerate(dual_encoders):
            assert isinstance(scorer, DualEncoderScorer)
            tensors |= prefixed(f"dual-{k}", scorer.matcher.state_dict())
        write_checkpoint(folder, tensors, {"weights": [list(weight) for weight in self.weights]})

    def load(self, folder: Path) -> None:
        tensors, facts = read_checkpoint(folder)
        cca = RidgeCCA(**without_prefix("cca", tensors))
        dual_encoders = []
        for k in range(self.settings.dual_encoders):
            matcher = build_dual_encoder(len(cca.image_mean), len(cca.text_mean), self.settings)
            matcher.load_state_dict(without_prefix(f"dual-{k}", tensors))
            dual_encoders.append(DualEncoderScorer(matcher.eval().requires_grad_(False), torch.zeros(0)))
        self.scorers = [cca, *dual_encoders]
        self.weights = [EnsembleWeight(*weight) for weight in facts["weights"]]

    @torch.no_grad()
    def _texts(self, vectors: Tensor) -> Encoded:
        return self._joined([scorer.encode_texts(vectors) for scorer in self.scorers])

    @torch.no_grad()
    def _images(self, vectors: Tensor) -> Encoded:
        return self._joined([scorer.encode_images(vectors) for scorer in self.scorers])

    def _joined(self, encoded: Sequence[Tensor]) -> Encoded:
        """The weighted vectors of all scorers, whose products are the ensemble logits."""
        weighted = zip(encoded, self.weights, strict=True)
        return Encoded(pooled=torch.cat([w.factor * (vectors / w.divisor) for vectors, w in weighted], dim=1))

    def _report(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress("training", done, total)


def open_audit(
    folder: Path, *, encoder: str | None = None, progress: Progress | None = None
) -> tuple[AuditModel, Pairs]:
    """The model of a finished audit, not fitted yet, and the pairs that it could read.

    Args:
        encoder: folder of the CLIP or SigLIP model that the audit was made with, if it was.
    """
    summary = read_summary(folder)
    table = ResultTable(folder)
    source, encoders = _reopen(folder, summary), Encoders.open(encoder)
    _check_encoders(folder, summary, encoders)
    inputs = inspect_inputs(source.pairs, encoders)
    if inputs.key != summary.get("key") or len(source.rows) != len(table):
        raise UserError(
            f"the pairs have changed since the audit in {folder} was made; run the same `srem audit` command again"
        )
    embedded = embed_pairs(inputs, folder / FEATURES / inputs.key, encoders, progress=progress)
    kept = kept_pairs(table, source, embedded)
    return AuditModel(read_vectors(embedded.pairs), kept, encoders, inputs.key, progress), embedded.pairs


def kept_pairs(table: ResultTable, source: Source, embedded: EmbeddedPairs) -> np.ndarray:
    """(m,) bool: which of the embedded pairs were scored and are not flagged."""
    is_kept = np.isfinite(table.numbers("match_probability")) & ~table.flags("is_mismatch")  # by row
    kept_numbers = source.rows.pair_of_row[is_kept]
    return np.isin(embedded.pair_numbers, kept_numbers[kept_numbers != MISSING])


def _reopen(folder: Path, summary: dict[str, Any]) -> Source:
    facts = summary.get("source") or {}
    if "sharded" in summary:
        raise UserError(
            f"{folder} is a sharded audit, which is not searched; train on its export with `srem train`, and search "
            "in that run"
        )
    if facts.get("format") == "run":
        return source_of_run(facts["path"])
    if facts.get("format") in (None, "embeddings", "pairs"):
        raise UserError(
            f"{folder} is an audit of embeddings or of pairs in memory, so new texts and images cannot be encoded as "
            "they were; audit the images and captions themselves"
        )
    return open_source(facts["path"], format=facts["format"], split=facts["split"], **facts.get("options", {}))


def _check_encoders(folder: Path, summary: dict[str, Any], encoders: Encoders) -> None:
    settings = summary.get("settings", {})
    for noun, used in (("image", encoders.images.description), ("text", encoders.texts.description)):
        stored = settings.get(f"{noun}_encoder", used)
        if stored == GIVEN:
            raise DataError(
                f"the audit in {folder} used {noun} features as given, so new {noun}s cannot be encoded as they were; "
                "audit the images and captions themselves, or train a model with `srem train` and search in that run"
            )
        if stored != used:
            raise UserError(
                f"the audit in {folder} was made with the encoder {stored}; give its folder to `srem index` "
                "with --encoder"
            )
