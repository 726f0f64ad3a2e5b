"""How well an audit finds mismatches: Flickr8k with shuffled captions, and agreement with human verdicts.

    python -m benchmarks.audit_flickr8k --rates 0 0.2 0.4 0.6 --out results/audit-flickr8k.csv

The ground truth of the noise is joined after scoring. Noise and scoring have the same seed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.commands import make_parser
from sremkit.audit.embed import read_vectors, score_pairs
from sremkit.audit.scoring.candidates import CandidateSoftmax, concat_weighted, ensemble_weights
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.fold_model import train_scorers
from sremkit.audit.scoring.near_duplicates import equal_groups
from sremkit.audit.scoring.negatives import draw_negatives
from sremkit.audit.scoring.types import PairScores, ScoringSettings
from sremkit.bench.grid import write_csv
from sremkit.bench.tables import aligned
from sremkit.data import Noise, Pairs, make_noise, read_pairs
from sremkit.data.pairs import MISSING
from sremkit.data.training_pairs import resolve_source
from sremkit.evaluation import detection_metrics
from sremkit.evaluation.detection import CROWD_FILE, crowd_agreement, crowd_labels

PRECISE = CutoffRule(precision=0.95)
SHOWN = {
    "true_rate": "noise",
    "estimated_rate": "estimated",
    "rate_low": "low",
    "rate_high": "high",
    "auroc": "AUROC",
    "precision": "precision",
    "recall": "recall",
    "seconds": "s",
    "cpu_seconds": "CPU s",
}


def audit_row(clean: Pairs, rate: float, settings: ScoringSettings, *, protocol: Any = "caption") -> dict[str, Any]:
    """Shuffle, score, and measure the verdicts against the ground truth."""
    noise = make_noise(clean.image_of_text, rate=rate, protocol=protocol, seed=settings.seed)
    started, worked = time.monotonic(), time.process_time()
    verdicts = score_pairs(clean.paired_as(noise.image_of_text), settings)
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - worked
    return {
        "data": clean.name,
        "pairs": len(clean),
        "protocol": protocol,
        "seed": settings.seed,
        "noise_hash": noise.hash,
        "target_precision": PRECISE.precision,
        **measure(verdicts, noise),
        "better_image_is_true": _found_again(verdicts, noise, clean.image_of_text),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,  # on a shared machine more meaningful than the other
        "threads": torch.get_num_threads(),
    }


def measure(verdicts: PairScores, noise: Noise) -> dict[str, float]:
    """Detection, the called pairs, the noise rate and its interval."""
    rate = verdicts.noise_rate
    called = verdicts.flag(PRECISE)
    measured = detection_metrics(noise.is_noisy, verdicts.match_prob, verdict=called)
    expected = float((1 - verdicts.match_prob[called]).mean()) if called.any() else float("nan")
    worst = CutoffRule(fraction=0.05).flag(verdicts.match_prob)
    return {
        **measured,
        "expected_precision": expected,
        "precision_of_worst_twentieth": float(noise.is_noisy[worst].mean()) if worst.any() else float("nan"),
        "estimated_rate": float("nan") if rate is None else rate.estimate,
        "rate_low": float("nan") if rate is None else rate.low,
        "rate_high": float("nan") if rate is None else rate.high,
    }


def crowd_auroc(train: Pairs, val: Pairs, test: Pairs, settings: ScoringSettings, file: Path) -> dict[str, float]:
    """Agreement with people's judgements of scorers trained on all clean pairs.

    The ensemble weights and the candidates are of the val split, so nothing of the test split is fitted on.

    Returns:
        "statistic" of the candidate softmax, by which an audit scores, and "logit", the ensemble's F.
    """
    scorers = train_scorers(read_vectors(train), np.arange(len(train)), settings, seed=settings.seed)
    at_val, at_test = read_vectors(val), read_vectors(test)
    images, texts = torch.cat([at_val.images, at_test.images]), torch.cat([at_val.texts, at_test.texts])
    rows = np.arange(len(val))
    negatives = draw_negatives(
        rows,
        val.image_of_text,
        np.arange(val.num_images),
        equal_groups(at_val.texts.numpy()),
        rounds=5,
        seed=settings.seed,
    )
    with torch.no_grad():
        encoded = [(scorer.encode_images(images), scorer.encode_texts(texts)) for scorer in scorers]
        weights = ensemble_weights(encoded, (val.image_of_text, rows), (negatives.image, negatives.text))
        image_emb, text_emb = concat_weighted(encoded, weights)
        candidates = np.sort(np.random.default_rng(settings.seed).permutation(rows)[: settings.candidates])
        softmax = CandidateSoftmax(image_emb, text_emb, at_val.image_of_text, torch.from_numpy(candidates))
        image, text, _ = crowd_labels(test, file)
        scores = softmax.score(image + val.num_images, text + len(val))
        logits = image_emb[val.num_images :] @ text_emb[len(val) :].T  # (n, m)
    statistic = np.zeros((test.num_images, len(test)))
    statistic[image, text] = scores.statistic
    return {
        "statistic": crowd_agreement(statistic, test, file),
        "logit": crowd_agreement(logits, test, file),
    }


def _found_again(verdicts: PairScores, noise: Noise, true_image: np.ndarray) -> float:
    """Of wrong pairs whose true image is in their fold, the share for which it is named as the better one."""
    fold_of_image = np.full(int(max(true_image.max(), noise.image_of_text.max())) + 1, MISSING)
    fold_of_image[noise.image_of_text] = verdicts.fold
    within_reach = noise.is_noisy & (fold_of_image[true_image] == verdicts.fold)
    return float((verdicts.better_image == true_image)[within_reach].mean()) if within_reach.any() else float("nan")


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [list(SHOWN.values())]
    for row in rows:
        lines.append([f"{row[key]:.0f}" if key.endswith("seconds") else f"{row[key]:.4f}" for key in SHOWN])
    return aligned(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("audit_flickr8k", __doc__)
    parser.add_argument("--data", default="$SREMKIT_DATA/flickr8k", help="the folder of Flickr8k")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.0, 0.2, 0.4, 0.6], help="shares of wrong pairs")
    parser.add_argument("--protocol", choices=("caption", "image"), default="caption", help="noise protocol")
    parser.add_argument("--seed", type=int, default=0, help="of the noise and of the scoring")
    parser.add_argument("--no-crowd", action="store_true", help="leave out the agreement with people")
    parser.add_argument("--out", type=Path, help="CSV to write")
    options = parser.parse_args(arguments)
    folder = resolve_source(options.data)
    train, val, test = (
        read_pairs(folder, split=split, format="flickr8k", features="pooled") for split in ("train", "val", "test")
    )
    settings = ScoringSettings(seed=options.seed)
    rows = []
    for rate in options.rates:
        rows.append(audit_row(train, rate, settings, protocol=options.protocol))
        print(table(rows[-1:]), flush=True)
        if options.out is not None:
            write_csv(rows, options.out)
    if rows:
        print(table(rows))
    if not options.no_crowd:
        agreement = crowd_auroc(train, val, test, settings, Path(folder) / CROWD_FILE)
        print("agreement with people (AUROC): " + ", ".join(f"{k} {v:.4f}" for k, v in agreement.items()))


if __name__ == "__main__":
    main()
