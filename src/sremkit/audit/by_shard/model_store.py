"""A learnt model on disk: safetensors and JSON, complete or not there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sremkit.audit.by_shard.model import FoldJudge, Model, Pool
from sremkit.audit.competition import Say, Witness
from sremkit.audit.judging_settings import JudgingSettings
from sremkit.audit.linear_witness import LinearWitness
from sremkit.audit.score_mixture import ScoreMixture, WrongShare
from sremkit.audit.scores import FittedScores
from sremkit.audit.trained_witness import TrainedWitness
from sremkit.audit.verdicts import NoiseRate
from sremkit.models import build_matcher
from sremkit.models.dual import DualEncoder
from sremkit.training.checkpoint import is_valid, prefixed, read_checkpoint, write_checkpoint
from sremkit.training.checkpoint import without_prefix as under

LINEAR = ("image_mean", "image_map", "text_mean", "text_map")


def write_model(folder: Path, model: Model, settings: JudgingSettings, *, key: str) -> None:
    """Write the model; two processes may do so at once, and the same comes out."""
    tensors: dict[str, Tensor] = {"rising": torch.from_numpy(model.rising)}
    scores = model.scores
    facts: dict[str, Any] = {
        "key": key,
        "sampled": model.sampled,
        "seed": model.seed,
        "note": scores.note,
        "noise_rate": None if scores.noise_rate is None else asdict(scores.noise_rate),
        "share": None if scores.mixture is None else asdict(scores.mixture.share),
        "matcher": {n: getattr(settings, n) for n in ("hidden_size", "embed_size", "dropout", "scale")},
        "folds": [],
    }
    if scores.mixture is not None:
        tensors["place"] = torch.from_numpy(scores.mixture.place)
        tensors["wrong"] = torch.from_numpy(scores.mixture.wrong)
    for number, judge in enumerate(model.judges):
        linear, *trained = judge.witnesses
        assert isinstance(linear, LinearWitness)
        pool = judge.pool
        of_fold = {
            **prefixed("linear", {name: getattr(linear, name) for name in LINEAR}),
            **_weights(trained),
            "image_emb": pool.image_emb,
            "text_emb": pool.text_emb,
            "image_key": torch.from_numpy(pool.image_key),
        }
        tensors |= prefixed(f"fold-{number}", of_fold)
        words = {name: getattr(pool, name) for name in ("candidates", "pair_ids", "captions", "image_ids")}
        says = [asdict(say) for say in judge.says]
        facts["folds"].append({"says": says, "middle": judge.middle, "width": judge.width, "pool": words})
    try:
        write_checkpoint(folder, tensors, facts)
    except OSError:
        if not is_valid(folder):  # else another process was a moment earlier
            raise


def _weights(trained: Sequence[Witness]) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for number, witness in enumerate(trained):
        assert isinstance(witness, TrainedWitness)
        weights |= prefixed(f"trained-{number}", witness.matcher.state_dict())
    return weights


@lru_cache(maxsize=1)
def read_model(folder: Path, key: str) -> Model:
    """The model, read once by a process that judges many shards; `key` tells it from an older one."""
    tensors, facts = read_checkpoint(folder)
    assert facts["key"] == key
    mixture = None
    if facts["share"] is not None:
        share = WrongShare(**facts["share"])
        mixture = ScoreMixture(share, tensors["place"].numpy(), tensors["wrong"].numpy())
    rate = None if facts["noise_rate"] is None else NoiseRate(**facts["noise_rate"])
    judges = [
        _judge(under(f"fold-{number}", tensors), of_fold, facts["matcher"])
        for number, of_fold in enumerate(facts["folds"])
    ]
    return Model(
        judges,
        FittedScores(mixture, rate, facts["note"]),
        tensors["rising"].numpy(),
        facts["seed"],
        facts["sampled"],
    )


def _judge(tensors: dict[str, Tensor], facts: dict[str, Any], matcher: dict[str, Any]) -> FoldJudge:
    linear = LinearWitness(**under("linear", tensors))
    trained = []
    for number in range(len(facts["says"]) - 1):  # the first is the linear one's
        dual = build_matcher(
            "dual", image_dim=len(linear.image_mean), text_dim=len(linear.text_mean), **matcher
        )
        assert isinstance(dual, DualEncoder)
        dual.load_state_dict(under(f"trained-{number}", tensors))
        trained.append(TrainedWitness(dual.eval().requires_grad_(False), torch.zeros(0)))
    image_key: np.ndarray = tensors["image_key"].numpy()
    pool = Pool(tensors["image_emb"], tensors["text_emb"], image_key, **facts["pool"])
    says = [Say(**say) for say in facts["says"]]
    return FoldJudge([linear, *trained], says, facts["middle"], facts["width"], pool)
