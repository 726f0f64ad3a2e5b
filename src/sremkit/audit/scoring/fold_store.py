"""Finished folds and fitted models on disk, as safetensors and JSON.

Each is a folder that appears only when it is complete. A finished fold carries a key made of all that it depends on:
after a change of data, settings or version it does not fit and is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.scoring.calibration import Calibration, DensityRatio
from sremkit.audit.scoring.candidates import EnsembleWeight, PairScorer
from sremkit.audit.scoring.dual_encoder import DualEncoderScorer, build_dual_encoder
from sremkit.audit.scoring.fold_model import FoldModel, FoldScores
from sremkit.audit.scoring.folds import Folds
from sremkit.audit.scoring.joint_posterior import JointPosterior
from sremkit.audit.scoring.ridge_cca import RidgeCCA, RootCCA
from sremkit.audit.scoring.types import NearMismatches, NoiseRate, PairVectors, ScoringSettings
from sremkit.audit.scoring.zero_shot import ZeroShot
from sremkit.io import digest
from sremkit.training.checkpoint import is_valid, prefixed, read_checkpoint, without_prefix, write_checkpoint
from sremkit.version import __version__

NOT_CALIBRATED = Calibration(None, None, "", np.zeros(0))
POOL = ("image_emb", "text_emb", "image_key", "rows", "images")  # arrays of a `FoldModel`
# Scorers that are fitted in closed form, in the order of an ensemble, with the prefix of their tensors.
CLOSED_FORM: dict[str, Callable[..., PairScorer]] = {"cca": RidgeCCA, "root-cca": RootCCA}
FACTS = ("weights", "null_mean", "null_std", "candidates")  # its other values
RETIRED_SETTINGS = ("word_epochs",)  # which folders of earlier versions hold


class FoldStore:
    """Keeps the scores of finished folds in a folder."""

    def __init__(self, folder: Path, settings: ScoringSettings, key: str) -> None:
        self.folder, self.settings, self.key = folder, settings, key

    def load(self, number: int) -> FoldScores | None:
        """The finished fold, or None if there is none that fits."""
        if not is_valid(self.folder / f"fold-{number}"):
            return None
        tensors, facts = read_checkpoint(self.folder / f"fold-{number}")
        if facts.get("key") != self.key:
            return None
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        return FoldScores(**arrays, candidates=facts["candidates"])

    def load_model(self, number: int) -> FoldModel | None:
        """The model of a finished fold, or None if there is none that fits."""
        folder = self.folder / f"model-{number}"
        if not is_valid(folder):
            return None
        models, _, _, facts = read_models(folder)
        return models[0] if facts.get("key") == self.key else None

    def save(self, number: int, fold: FoldScores, model: FoldModel | None = None) -> None:
        if model is not None:
            folder = self.folder / f"model-{number}"
            write_models(folder, [model], NOT_CALIBRATED, self.settings, {"key": self.key})
        arrays = asdict(fold)
        candidates = arrays.pop("candidates")
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        write_checkpoint(self.folder / f"fold-{number}", tensors, {"key": self.key, "candidates": candidates})


def fold_key(vectors: PairVectors, settings: ScoringSettings, folds: Folds) -> str:
    """A hash of all that finished folds depend on."""
    facts = {
        "version": __version__,
        "holds": [field.name for field in fields(FoldScores)],
        "data": vectors.fingerprint(),
        "settings": asdict(settings),
        "folds": [folds.fold.tolist(), folds.block.tolist()],
    }
    return digest(facts, length=64)


def write_models(
    folder: Path,
    models: Sequence[FoldModel],
    calibration: Calibration,
    settings: ScoringSettings,
    facts: dict[str, Any],
) -> None:
    """Write fitted fold models with their calibration and further facts; two processes may do so at a time."""
    ratio = calibration.ratio
    tensors: dict[str, Tensor] = {"sorted_statistic": torch.from_numpy(calibration.sorted_statistic)}
    if ratio is not None:
        tensors["knots"] = torch.from_numpy(ratio.knots)
        tensors["mismatch_prob"] = torch.from_numpy(ratio.mismatch_prob)
    joint = {} if calibration.joint is None else asdict(calibration.joint)
    if joint:
        tensors["text_mean"] = torch.from_numpy(joint.pop("text_mean"))
    facts = {
        **facts,
        "settings": asdict(settings),
        "joint": joint,
        "note": calibration.note,
        "noise_rate": None if calibration.noise_rate is None else asdict(calibration.noise_rate),
        "share": None if ratio is None else asdict(ratio.share),
        "separation": calibration.separation,
        "near": None if calibration.near is None else asdict(calibration.near),
        "folds": [],
    }
    for number, model in enumerate(models):
        of_fold = {name: torch.as_tensor(getattr(model, name)) for name in POOL}
        dual_encoders = 0
        for scorer in model.scorers:
            if isinstance(scorer, DualEncoderScorer):
                of_fold |= prefixed(f"dual-{dual_encoders}", scorer.matcher.state_dict())
                dual_encoders += 1
            elif not isinstance(scorer, ZeroShot):  # which has nothing to store
                name = next(name for name, kind in CLOSED_FORM.items() if type(scorer) is kind)
                of_fold |= prefixed(name, vars(scorer))
        tensors |= prefixed(f"fold-{number}", of_fold)
        facts["folds"].append({name: getattr(model, name) for name in FACTS})
    try:
        write_checkpoint(folder, tensors, facts)
    except OSError:
        if not is_valid(folder):  # else another process has written it first
            raise


def read_models(folder: Path) -> tuple[list[FoldModel], Calibration, ScoringSettings, dict[str, Any]]:
    """What `write_models` wrote."""
    tensors, facts = read_checkpoint(folder)
    settings = ScoringSettings(**{k: v for k, v in facts["settings"].items() if k not in RETIRED_SETTINGS})
    ratio = None
    if facts["share"] is not None:
        arrays = (tensors[name].numpy() for name in ("knots", "mismatch_prob"))
        ratio = DensityRatio(NoiseRate(**facts["share"]), *arrays)
    rate = None if facts["noise_rate"] is None else NoiseRate(**facts["noise_rate"])
    near = NearMismatches(**facts["near"]) if facts.get("near") else None
    joint = None
    if facts.get("joint"):
        joint = JointPosterior(text_mean=tensors["text_mean"].numpy(), **facts["joint"])
    statistic = tensors["sorted_statistic"].numpy()
    calibration = Calibration(ratio, rate, facts["note"], statistic, facts.get("separation"), near, joint)
    models = [
        _model(without_prefix(f"fold-{number}", tensors), of_fold, settings)
        for number, of_fold in enumerate(facts["folds"])
    ]
    return models, calibration, settings, facts


def _model(tensors: dict[str, Tensor], facts: dict[str, Any], settings: ScoringSettings) -> FoldModel:
    scorers: list[PairScorer] = []
    widths: dict[str, Tensor] = {}
    for prefix, kind in CLOSED_FORM.items():
        if fields_of := without_prefix(prefix, tensors):
            scorers.append(kind(**fields_of))
            widths = fields_of
    k = 0
    while state := without_prefix(f"dual-{k}", tensors):
        matcher = build_dual_encoder(len(widths["image_mean"]), len(widths["text_mean"]), settings)
        matcher.load_state_dict(state)
        scorers.append(DualEncoderScorer(matcher.eval().requires_grad_(False), torch.zeros(0)))
        k += 1
    if settings.zero_shot:
        scorers.append(ZeroShot())
    return FoldModel(
        scorers=scorers,
        image_emb=tensors["image_emb"],
        text_emb=tensors["text_emb"],
        image_key=tensors["image_key"].numpy(),
        rows=tensors["rows"].numpy(),
        images=tensors["images"].numpy(),
        **{**facts, "weights": [EnsembleWeight(*weight) for weight in facts["weights"]]},
    )
