"""What cleaning brings: recall of a small dual encoder trained on all pairs, and on the pairs that an audit keeps.

Both are trained on the audit's vectors with InfoNCE, for the same number of steps, from the same seeds. The images are
split first; recall is measured on held-out pairs that the audit keeps, because the true ones are not known. Pairs that
the audit wrongly keeps or drops are wrong in the test as well, so that small differences say little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from sremkit.audit.scoring.dual_encoder import build_dual_encoder, seeded, step_function
from sremkit.audit.scoring.folds import balanced_folds
from sremkit.audit.scoring.types import PairVectors, ScoringSettings
from sremkit.data.batches import batch_order
from sremkit.evaluation.recall import retrieval_recall
from sremkit.models.layers.encoders import all_cosines
from sremkit.objectives.contrastive import infonce

HELD_OUT = 5  # every fifth image is held out,
MAX_TEST_IMAGES = 1000  # and of those so many are tested
MIN_PAIRS = 100  # kept pairs to train on, below which nothing is compared
EPOCHS = 10
SEEDS = 3
ON = ("all", "kept")

OnRun = Callable[[int, int], None]


def compare_training(
    vectors: PairVectors,
    kept: np.ndarray,
    *,
    seed: int = 0,
    settings: ScoringSettings | None = None,
    on_run: OnRun | None = None,
) -> dict[str, Any] | None:
    """Recall of models trained on all pairs and on the kept ones; None where there are too few pairs.

    Args:
        kept: (m,) bool, the pairs that the audit keeps.
        on_run: called with the number of trainings that are done and their total.

    Returns:
        for "all" and "kept" the number of training pairs and means over seeds of "rsum", "i2t/R@1" and so on, with the
        standard deviation of "rsum"; and the numbers of test images and test pairs.
    """
    settings = settings or ScoringSettings()
    fold = balanced_folds(vectors.image_of_text.numpy(), vectors.group_of_image, HELD_OUT, seed=seed)
    training = {"all": np.flatnonzero((fold != 0) & vectors.readable), "kept": np.flatnonzero((fold != 0) & kept)}
    test = np.flatnonzero((fold == 0) & kept & vectors.readable)
    images = np.unique(vectors.image_of_text.numpy()[test])
    images = np.sort(np.random.default_rng(seed).permutation(images)[:MAX_TEST_IMAGES])
    test = test[np.isin(vectors.image_of_text.numpy()[test], images)]
    if len(training["kept"]) < MIN_PAIRS or len(images) < 10:
        return None
    batch_size = min(settings.batch_size, max(len(training["kept"]) // 4, 2))
    steps = EPOCHS * max(len(training["all"]) // batch_size, 1)
    result: dict[str, Any] = {"test_images": len(images), "test_pairs": len(test), "seeds": SEEDS}
    for number, name in enumerate(ON):
        recalls = []
        for run in range(SEEDS):
            recalls.append(
                _recall(
                    vectors, training[name], test, images, replace(settings, batch_size=batch_size), steps, seed + run
                )
            )
            if on_run is not None:
                on_run(number * SEEDS + run + 1, len(ON) * SEEDS)
        means = {key: round(float(np.mean([recall[key] for recall in recalls])), 2) for key in recalls[0]}
        spread = round(float(np.std([recall["rsum"] for recall in recalls], ddof=1)), 2)
        result[name] = {"pairs": len(training[name]), **means, "rsum_std": spread}
    return result


def _recall(
    vectors: PairVectors,
    rows: np.ndarray,
    test: np.ndarray,
    images: np.ndarray,
    settings: ScoringSettings,
    steps: int,
    seed: int,
) -> dict[str, float]:
    """Train on the pairs `rows` for some steps; recall of the pairs `test` of these images."""
    with seeded(seed):
        matcher = build_dual_encoder(vectors.images.shape[1], vectors.texts.shape[1], settings).train()
        optimizer = torch.optim.Adam(matcher.parameters(), lr=settings.learning_rate, fused=True)
        step = step_function(optimizer, steps, None)
        done = epoch = 0
        while done < steps:
            for numbers in batch_order(len(rows), settings.batch_size, seed=seed, epoch=epoch, drop_last=True):
                if done == steps:
                    break
                pairs = torch.from_numpy(rows[numbers])
                image_emb = matcher.image_tower(vectors.images[vectors.image_of_text[pairs]])
                logits = matcher.to_logit(all_cosines(image_emb, matcher.text_tower(vectors.texts[pairs])))
                step((infonce(logits) + infonce(logits.T)) / 2)
                done += 1
            epoch += 1
        matcher.eval()
    with torch.no_grad():
        image_emb = matcher.image_tower(vectors.images[torch.from_numpy(images)])
        scores = all_cosines(image_emb, matcher.text_tower(vectors.texts[torch.from_numpy(test)]))
    image_of_text = np.searchsorted(images, vectors.image_of_text.numpy()[test])
    recall = retrieval_recall(scores, image_of_text)
    return {name: value for name, value in recall.items() if "median" not in name}
