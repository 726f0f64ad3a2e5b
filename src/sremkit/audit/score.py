"""New pairs scored by the models of a finished audit, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sremkit.audit.embed import SCORER, Encoders, embed_pairs, inspect_inputs
from sremkit.audit.folder import FEATURES, FOLDS
from sremkit.audit.inputs import Source
from sremkit.audit.issues import find_duplicates, find_issues
from sremkit.audit.result_table import build_table, read_summary
from sremkit.audit.scoring.cross_fit import Progress
from sremkit.audit.scoring.ridge_cca import RidgeCCA
from sremkit.audit.sharded.sample import SampleModel
from sremkit.audit.stages import from_zero
from sremkit.errors import DataError, UserError
from sremkit.io import first_line
from sremkit.training.checkpoint import DamagedCheckpointError, read_facts

if TYPE_CHECKING:
    import pyarrow as pa

GIVEN = "features as given"


def score_new_pairs(
    folder: str | Path, source: Source, *, workers: int | None = None, progress: Progress | None = None
) -> pa.Table:
    """The table of an audit for new pairs, flagged by the cutoff of the finished audit in `folder`.

    An image that the audit has seen is scored by the model that was not trained on it. Better captions and images are
    those of the audited pairs.
    """
    folder, progress = Path(folder), from_zero(progress)
    summary = read_summary(folder)
    model = _load_model(folder, summary)
    encoders = Encoders.open(summary.get("encoder"))
    inputs = inspect_inputs(source.pairs, encoders, progress)
    _check_encoders(summary.get("settings", {}), encoders.describe(inputs.missing))
    # Next to the audit's features, so that images and captions that it has encoded are not encoded again.
    embedded = embed_pairs(inputs, folder / FEATURES / inputs.key, encoders, workers=workers, progress=progress)
    _check_widths(model, embedded.pairs)
    scores, better = model.score(embedded.pairs)
    is_mismatch = scores.is_scored & (scores.match_prob < summary.get("threshold", 0.0))
    duplicates = find_duplicates(embedded.pairs, source.has_texts)
    issues = find_issues(embedded, duplicates, has_texts=source.has_texts, progress=progress)
    return build_table(source, embedded, scores, is_mismatch, duplicates, better, issues=issues)


def _load_model(folder: Path, summary: dict[str, Any]) -> SampleModel:
    if not summary:
        raise DataError(f"{folder} holds no finished audit (there is no summary.json in it); make it with `srem audit`")
    path = folder / "model" if "sharded" in summary else folder / FOLDS / str(summary.get("key")) / SCORER
    if not path.is_dir():
        raise DataError(
            f"the audit in {folder} kept no models: it had too few pairs, or an earlier version made it; audit the "
            "pairs again into a new folder"
        )
    try:
        model = SampleModel.load(path, read_facts(path).get("key", ""))
    except DamagedCheckpointError as cause:
        raise DataError(_damaged_models(cause.folder, cause.reason)) from cause
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError, IndexError, AssertionError) as cause:
        raise DataError(_damaged_models(path, f"it is of another version, {first_line(cause)}")) from cause
    if not model.scorer.models:
        raise DataError(f"the audit in {folder} kept no models: {model.scorer.calibration.note or 'they were removed'}")
    return model


def _damaged_models(place: Path, reason: str) -> str:
    return f"a model of the audit is damaged ({place}: {reason}); audit the pairs again into a new folder"


def _check_encoders(before: dict[str, Any], now: dict[str, str]) -> None:
    for kind, name in (("image", "image_encoder"), ("text", "text_encoder")):
        then = before.get(name, now[name])
        if then == now[name]:
            continue
        if then == GIVEN:
            raise UserError(
                f"the audit was made from {kind} embeddings; give those of the new pairs by the same encoder, with "
                f"--{kind}-emb"
            )
        raise UserError(f"the audit encoded with {then}, the new pairs come with {now[name]}; use the same encoder")


def _check_widths(model: SampleModel, pairs: Any) -> None:
    cca = model.scorer.models[0].scorers[0]
    if not isinstance(cca, RidgeCCA):  # zero-shot similarity alone: both are encoded by one model
        return
    for kind, mean, features in (
        ("image", cca.image_mean, pairs.image_features),
        ("text", cca.text_mean, pairs.text_features),
    ):
        if len(mean) != features.dim:
            raise UserError(
                f"the {kind} vectors have {features.dim} numbers, those of the audit {len(mean)}; use the same encoder"
            )
