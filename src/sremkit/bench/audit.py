"""How well an audit finds wrong pairs: Flickr8k with shuffled captions, and what people say of its test pictures.

    python -m sremkit.bench.audit --rates 0 0.2 0.4 0.6 --out results/audit-flickr8k.csv

The truth about the noise is joined here, after the judging. The seed of the noise is also that of the judging.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sremkit.audit.choice import mismatches_at
from sremkit.audit.competition import Competition, join_witnesses
from sremkit.audit.fold_judging import learn_witnesses
from sremkit.audit.judging import JudgingSettings, judge
from sremkit.audit.judging_settings import WORD_EPOCHS
from sremkit.audit.surely_wrong import make_wrong_pairs, number_texts
from sremkit.audit.vectors import read_vectors
from sremkit.audit.verdicts import NOBODY, Verdicts
from sremkit.bench.audit_scenes import scenes_row
from sremkit.bench.grid import write_csv
from sremkit.data import Noise, Pairs, make_noise, read_pairs
from sremkit.data.paths import resolve_source
from sremkit.evaluation import detection_metrics
from sremkit.evaluation.crowd import FILE, crowd_agreement, crowd_verdicts
from sremkit.evaluation.tables import aligned

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


def audit_row(
    clean: Pairs, rate: float, settings: JudgingSettings, *, protocol: Any = "caption"
) -> dict[str, Any]:
    """Shuffle, judge, and measure the verdicts against the truth."""
    noise = make_noise(clean.image_of_text, rate=rate, protocol=protocol, seed=settings.seed)
    started, worked = time.monotonic(), time.process_time()
    verdicts = judge(clean.paired_as(noise.image_of_text), settings)
    seconds, cpu_seconds = time.monotonic() - started, time.process_time() - worked
    return {
        "data": clean.name,
        "pairs": len(clean),
        "protocol": protocol,
        "seed": settings.seed,
        "noise_hash": noise.hash,
        "target_precision": settings.precision,
        **measure(verdicts, noise),
        "better_image_is_true": _found_again(verdicts, noise, clean.image_of_text),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,  # tells more than the other on a machine that others use as well
        "threads": torch.get_num_threads(),
    }


def measure(verdicts: Verdicts, noise: Noise) -> dict[str, float]:
    """Detection, the called pairs, the noise rate and its interval."""
    rate = verdicts.noise_rate
    called = verdicts.is_mismatch
    measured = detection_metrics(noise.is_noisy, verdicts.mismatch_score, verdict=called)
    expected = float((1 - verdicts.mismatch_score[called]).mean()) if called.any() else float("nan")
    worst = mismatches_at(verdicts.mismatch_score, fraction=0.05)
    return {
        **measured,
        "expected_precision": expected,
        "precision_of_worst_twentieth": float(noise.is_noisy[worst].mean()) if worst.any() else float("nan"),
        "estimated_rate": float("nan") if rate is None else rate.estimate,
        "rate_low": float("nan") if rate is None else rate.low,
        "rate_high": float("nan") if rate is None else rate.high,
    }


def crowd_auroc(
    train: Pairs, val: Pairs, test: Pairs, settings: JudgingSettings, file: Path
) -> dict[str, float]:
    """Agreement with people of witnesses who learn from all clean pairs.

    Val decides on their say and gives the candidates, so nothing of the test split enters but what is judged.

    Returns:
        "statistic", by which an audit judges, and "logit", the plain F.
    """
    witnesses = learn_witnesses(read_vectors(train), np.arange(len(train)), settings, seed=settings.seed)
    at_val, at_test = read_vectors(val), read_vectors(test)
    images, texts = torch.cat([at_val.images, at_test.images]), torch.cat([at_val.texts, at_test.texts])
    rows = np.arange(len(val))
    wrong = make_wrong_pairs(
        rows,
        val.image_of_text,
        np.arange(val.num_images),
        number_texts(at_val.texts),
        rounds=5,
        seed=settings.seed,
    )
    with torch.no_grad():
        image_emb, text_emb = join_witnesses(
            witnesses, images, texts, (val.image_of_text, rows), (wrong.image, wrong.text)
        )
        candidates = np.sort(np.random.default_rng(settings.seed).permutation(rows)[: settings.candidates])
        competition = Competition(image_emb, text_emb, at_val.image_of_text, torch.from_numpy(candidates))
        image, text, _ = crowd_verdicts(test, file)
        standing = competition.standing(image + val.num_images, text + len(val))
        logits = image_emb[val.num_images :] @ text_emb[len(val) :].T  # (n, m)
    statistic = np.zeros((test.num_images, len(test)))
    statistic[image, text] = standing.statistic
    return {
        "statistic": crowd_agreement(statistic, test, file),
        "logit": crowd_agreement(logits, test, file),
    }


def _found_again(verdicts: Verdicts, noise: Noise, true_image: np.ndarray) -> float:
    """Of wrong pairs whose true picture is in their fold, the share for which it is named as the better one."""
    fold_of_image = np.full(int(max(true_image.max(), noise.image_of_text.max())) + 1, NOBODY)
    fold_of_image[noise.image_of_text] = verdicts.fold
    within_reach = noise.is_noisy & (fold_of_image[true_image] == verdicts.fold)
    return (
        float((verdicts.better_image == true_image)[within_reach].mean())
        if within_reach.any()
        else float("nan")
    )


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [list(SHOWN.values())]
    for row in rows:
        lines.append([f"{row[key]:.0f}" if key.endswith("seconds") else f"{row[key]:.4f}" for key in SHOWN])
    return aligned(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="How well an audit finds the wrong pairs of Flickr8k.")
    parser.add_argument("--data", default="$SREMKIT_DATA/flickr8k", help="the folder of Flickr8k")
    parser.add_argument(
        "--rates", type=float, nargs="*", default=[0.0, 0.2, 0.4, 0.6], help="shares of wrong pairs"
    )
    parser.add_argument("--protocol", choices=("caption", "image"), default="caption", help="noise protocol")
    parser.add_argument("--seed", type=int, default=0, help="of the noise and of the judging")
    parser.add_argument(
        "--scenes", type=int, default=0, help="also judge so many scenes with subtle mismatches"
    )
    parser.add_argument("--no-crowd", action="store_true", help="leave out the agreement with people")
    parser.add_argument("--out", type=Path, help="CSV to write")
    options = parser.parse_args(arguments)
    folder = resolve_source(options.data)
    train, val, test = (
        read_pairs(folder, split=split, format="flickr8k", features="pooled")
        for split in ("train", "val", "test")
    )
    settings = JudgingSettings(seed=options.seed)
    rows = []
    for rate in options.rates:
        rows.append(audit_row(train, rate, settings, protocol=options.protocol))
        print(table(rows[-1:]), flush=True)
        if options.out is not None:
            write_csv(rows, options.out)
    if rows:
        print(table(rows))
    if options.scenes:
        subtle = scenes_row(options.scenes, replace(settings, word_epochs=WORD_EPOCHS))
        print(
            f"scenes: {100 * subtle['subtle_recall']:.0f} % of the subtle mismatches at precision 0.9, "
            f"{100 * subtle['shuffled_recall']:.0f} % of the shuffled ones"
        )
    if not options.no_crowd:
        agreement = crowd_auroc(train, val, test, settings, Path(folder) / FILE)
        print("agreement with people (AUROC): " + ", ".join(f"{k} {v:.4f}" for k, v in agreement.items()))


if __name__ == "__main__":
    main()
