"""Whether `srem audit --words` pays on photographs: Flickr8k with captions that are wrong in one word.

    python -m benchmarks.audit_words --images 1200 --out results/audit-words-flickr8k.csv

Some captions are exchanged at random, and in others a word is replaced by another of its class (`sremkit.bench`). Each
collection is scored with and without words, which are compared with 36 regions an image; then the truth is joined.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import make_parser
from sremkit.audit.embed import score_pairs
from sremkit.audit.scoring.cutoff import CutoffRule
from sremkit.audit.scoring.types import WORD_EPOCHS, ScoringSettings
from sremkit.bench.audit_collections import FLICKR8K, SPLITS, draw_pairs
from sremkit.bench.grid import write_csv
from sremkit.bench.tables import aligned
from sremkit.bench.wrong_captions import exchange_word
from sremkit.data import Pairs, read_pairs
from sremkit.data.features import ArrayFeatures
from sremkit.data.pairs import FeatureSource
from sremkit.data.training_pairs import resolve_source
from sremkit.evaluation import detection_metrics
from sremkit.features.encoders.minilm import MiniLMEncoder

PRECISION = 0.9
CAPTIONS = 5
SHOWN = ("random_rate", "word_rate", "words", "auroc_word", "auroc_random", "estimate", "low", "high", "flagged",
         "precision", "recall_word", "recall_random", "cpu_seconds")  # fmt: skip


def with_wrong_words(pairs: Pairs, may_change: np.ndarray, rate: float, seed: int) -> tuple[Pairs, np.ndarray]:
    """The pairs with a word exchanged in a fraction of all captions, and which those are."""
    rng = np.random.default_rng([seed, 31])
    rows = rng.permutation(np.flatnonzero(may_change))
    texts, changed = list(pairs.texts), np.zeros(len(pairs), dtype=bool)
    for row in rows.tolist():
        if changed.sum() >= rate * len(pairs):
            break
        if (text := exchange_word(texts[row], rng)) is not None:
            texts[row], changed[row] = text, True
    vectors = pairs.text_features.rows(np.arange(len(pairs))).values.astype(np.float32)  # type: ignore[union-attr]
    if changed.any():
        vectors[changed] = MiniLMEncoder().encode([texts[k] for k in np.flatnonzero(changed)])
    return replace(pairs, texts=texts, text_features=ArrayFeatures(vectors, name="bench")), changed


def regions_of(pairs: Pairs) -> FeatureSource:
    """36 regions for each image of a collection that was drawn from Flickr8k."""
    numbers, parts, before = np.array([int(k) for k in pairs.image_ids]), [], 0
    for split in SPLITS:
        part = read_pairs(resolve_source(FLICKR8K), split=split, format="flickr8k", features="regions36")
        assert part.image_features is not None
        inside = numbers[(numbers >= before) & (numbers < before + part.num_images)] - before
        parts.append(part.image_features.rows(inside).values.astype(np.float32))
        before += part.num_images
    return ArrayFeatures(np.concatenate(parts), name="regions")  # the numbers rise


def rows_of(images: int, random_rate: float, word_rate: float, seed: int) -> list[dict[str, Any]]:
    """Score one collection without and with words."""
    drawn = draw_pairs("flickr8k-five", kind="random", rate=random_rate, size=images * CAPTIONS, seed=seed)
    pairs, changed = with_wrong_words(drawn.pairs, ~drawn.is_wrong, word_rate, seed)
    is_wrong, regions, rows = drawn.is_wrong | changed, regions_of(pairs), []
    for words in (False, True):
        started = time.process_time()
        settings = ScoringSettings(seed=seed, word_epochs=WORD_EPOCHS if words else 0)
        scores = score_pairs(pairs, settings, regions=regions)
        flagged, rate = scores.flag(CutoffRule(precision=PRECISION)), scores.noise_rate
        row: dict[str, Any] = {"pairs": len(pairs), "seed": seed, "words": words}
        row |= {"random_rate": float(drawn.is_wrong.mean()), "word_rate": float(changed.mean())}
        for name, of_kind in (("word", changed), ("random", drawn.is_wrong)):
            chosen = of_kind | ~is_wrong
            row[f"auroc_{name}"] = row[f"recall_{name}"] = float("nan")
            if of_kind.any():
                row[f"auroc_{name}"] = detection_metrics(of_kind[chosen], scores.match_prob[chosen])["auroc"]
                row[f"recall_{name}"] = float(flagged[of_kind].mean())
        row |= {"flagged": int(flagged.sum()), "note": scores.note}
        row["precision"] = float(is_wrong[flagged].mean()) if flagged.any() else float("nan")
        row |= {name: float("nan") if rate is None else getattr(rate, name) for name in ("estimate", "low", "high")}
        row["cpu_seconds"] = time.process_time() - started
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("audit_words", __doc__)
    parser.add_argument("--images", type=int, default=1200, help="with five captions each")
    shares = "shares of captions that are another image's, and wrong in a word; may be repeated"
    parser.add_argument("--rates", type=float, nargs=2, action="append", metavar=("RANDOM", "WORD"), help=shares)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="of the collections and of the scoring")
    parser.add_argument("--out", type=Path, help="CSV to write")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for seed in options.seeds:
        for random_rate, word_rate in options.rates or [(0.2, 0.2), (0.0, 0.2), (0.2, 0.0)]:
            rows += rows_of(options.images, random_rate, word_rate, seed)
            if options.out is not None:
                write_csv(rows, options.out)
    lines = [[f"{row[name]:.3f}" if isinstance(row[name], float) else str(row[name]) for name in SHOWN] for row in rows]
    print(aligned([list(SHOWN), *lines]))


if __name__ == "__main__":
    main()
