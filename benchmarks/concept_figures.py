"""The figures of docs/concepts, drawn from numbers that the package computes.

python -m benchmarks.concept_figures          # writes docs/images/concept-*.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.commands import make_parser, run_command
from sremkit import SREM
from sremkit.data import make_noise
from sremkit.data.generated.scenes.collection import SceneImages
from sremkit.evaluation import detection_metrics
from sremkit.objectives import normalized_entropy
from sremkit.objectives.complementary import label_weights
from sremkit.reports.figures import COLORS

IMAGES = Path(__file__).parents[1] / "docs" / "images"
NOISE_SEED = 0  # exchanges two of the four captions
RIGHT, WRONG = COLORS[0], COLORS[1]


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(make_parser("concept_figures", __doc__), write_figures, arguments)


def write_figures(args: argparse.Namespace) -> None:
    for draw in (noisy_pairs, energies, entropies, complementary_labels, cross_fitting):
        figure = draw()
        file = IMAGES / f"concept-{draw.__name__.replace('_', '-')}.png"
        figure.savefig(file, dpi=110, facecolor="white")
        print(file.relative_to(IMAGES.parents[1]))


def new_figure(width: float, height: float, columns: int) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def noisy_pairs() -> Figure:
    """Four generated scenes with captions, of which noise exchanged two."""
    scenes = SceneImages(4)
    captions = [min((caption.text for caption in scenes.captions(k)), key=len) for k in range(4)]
    image_of_text = make_noise(np.arange(4), rate=0.5, protocol="caption", seed=NOISE_SEED).image_of_text
    figure, axes = new_figure(10, 3.2, 4)
    for text, image in enumerate(image_of_text.tolist()):
        ax, is_wrong = axes[text], image != text
        ax.imshow(scenes.open(image))
        ax.set_axis_off()
        words = captions[text].split()
        lines = [" ".join(words[k : k + 5]) for k in range(0, len(words), 5)]
        ax.set_title("\n".join(lines), fontsize=10, color=WRONG if is_wrong else "black", y=-0.05, va="top")
    return figure


def trained_logits() -> tuple[Tensor, Tensor]:
    """Logits (256, 256) of a small model trained by SREM on pairs of which 40 % are wrong, and which ones are."""
    torch.manual_seed(0)
    latent = torch.randn(256, 8)
    images, texts = latent @ torch.randn(8, 32), latent @ torch.randn(8, 24)
    is_wrong = torch.arange(256) < 102
    texts[is_wrong] = texts[is_wrong].roll(1, dims=0)
    to_image, to_text = torch.nn.Linear(32, 16), torch.nn.Linear(24, 16)
    scale, bias = torch.nn.Parameter(torch.tensor(8.0)), torch.nn.Parameter(torch.tensor(-4.0))
    optimizer = torch.optim.Adam([*to_image.parameters(), *to_text.parameters(), scale, bias], lr=0.01)
    criterion = SREM()

    def logits_of(pairs: Tensor) -> Tensor:
        return scale * normalize(to_image(images[pairs])) @ normalize(to_text(texts[pairs])).T + bias

    for epoch in range(20):
        for pairs in torch.randperm(256).split(64):
            optimizer.zero_grad()
            criterion(logits_of(pairs), warmup=epoch < 10).total.backward()
            optimizer.step()
    with torch.no_grad():
        return logits_of(torch.randperm(256).sort().values), is_wrong


def energies() -> Figure:
    """Energies of right and wrong pairs in batches of 64, and the two margins."""
    logits, is_wrong = trained_logits()
    criterion, order = SREM(), torch.randperm(256, generator=torch.Generator().manual_seed(0))
    energy = torch.zeros(256)
    for pairs in order.split(64):
        energy[pairs] = criterion(logits[pairs][:, pairs]).energy_i2t
    figure, (ax,) = new_figure(7, 3.2, 1)
    edges = np.linspace(float(energy.min()), float(energy.max()), 30)
    ax.hist(energy[~is_wrong].numpy(), edges, color=RIGHT, alpha=0.75, label="right pairs")
    ax.hist(energy[is_wrong].numpy(), edges, color=WRONG, alpha=0.75, label="wrong pairs")
    for margin, name in ((criterion.clean_margin, "clean_margin"), (criterion.noisy_margin, "noisy_margin")):
        ax.axvline(margin, color="black", linestyle=":")
        ax.annotate(f" {name}", (margin, 1), xycoords=("data", "axes fraction"), va="top", fontsize=9)
    ax.set_xlabel("energy, image to text")
    ax.set_ylabel("pairs")
    ax.legend(frameon=False)
    return figure


def entropies() -> Figure:
    """Three rows of logits, their softmax and its normalized entropy."""
    rows = {
        "certain": torch.tensor([6.0, 0.0, -1.0, 0.5, -0.5, 0.0]),
        "two candidates": torch.tensor([3.0, 2.6, -1.0, 0.0, -0.5, 0.0]),
        "uncertain": torch.tensor([0.6, 0.5, 0.3, 0.4, 0.2, 0.5]),
    }
    figure, axes = new_figure(9, 2.8, 3)
    for ax, (name, row) in zip(axes, rows.items(), strict=True):
        entropy = float(normalized_entropy(row.expand(6, 6))[0])
        ax.bar(range(1, 7), row.softmax(0).numpy(), color=[RIGHT] + ["#bbbbbb"] * 5)
        ax.set_title(f"{name}: entropy {entropy:.2f}, weight {1 - entropy:.2f}", fontsize=10)
        ax.set_ylim(0, 1)
        ax.set_xlabel("candidate; 1 is the given one")
    axes[0].set_ylabel("probability")
    return figure


def complementary_labels() -> Figure:
    """Weights of the complementary labels of six queries, of which three are clean."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 6, generator=generator) * 1.5 + 2.5 * torch.eye(6)
    clean = torch.tensor([True, False, True, False, True, False])
    weights = label_weights(logits, clean, sharpness=4.0, offset=0.5)
    hardest = (logits - 1e9 * torch.eye(6)).argmax(1)
    figure, axes = new_figure(9, 4.2, 2)
    for ax, values, title in zip(axes, (logits.sigmoid(), weights), ("scores", "weights of the labels"), strict=True):
        ax.imshow(values.numpy(), cmap="Blues", vmin=0)
        ax.set_title(title, fontsize=10)
        ax.set_xticks(range(6), [f"text {k + 1}" for k in range(6)], rotation=45)
        ax.set_yticks(range(6), [f"image {k + 1}{', clean' if clean[k] else ''}" for k in range(6)])
    for k in range(6):
        axes[1].text(k, k, "given", ha="center", va="center", fontsize=8)
        if clean[k]:
            axes[1].text(int(hardest[k]), k, "ranked", ha="center", va="center", fontsize=8)
    return figure


def cross_fitting() -> Figure:
    """Scores of right and wrong pairs by a linear model: trained on them, and trained on the other folds."""
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(400, 8))
    noise = 2.0 * rng.normal(size=(400, 300))
    images, texts = latent @ rng.normal(size=(8, 300)) + noise, latent @ rng.normal(size=(8, 20))
    is_wrong = np.arange(400) < 120
    texts[is_wrong] = np.roll(texts[is_wrong], 1, axis=0)
    folds = rng.permutation(400) % 5
    inside = fit_scores(images, texts, images, texts)
    outside = np.zeros(400)
    for fold in range(5):
        held, rest = folds == fold, folds != fold
        outside[held] = fit_scores(images[rest], texts[rest], images[held], texts[held])
    figure, axes = new_figure(9, 3, 2)
    for ax, score, title in zip(axes, (inside, outside), ("trained on the pair", "held out"), strict=True):
        auroc = detection_metrics(is_wrong, score)["auroc"]
        edges = np.linspace(-0.6, 1, 33)
        ax.hist(score[~is_wrong], edges, color=RIGHT, alpha=0.75, label="right pairs")
        ax.hist(score[is_wrong], edges, color=WRONG, alpha=0.75, label="wrong pairs")
        ax.set_title(f"{title}: AUROC {auroc:.3f}", fontsize=10)
        ax.set_xlabel("score of the given pair (cosine)")
    axes[0].legend(frameon=False)
    return figure


def fit_scores(x: np.ndarray, y: np.ndarray, new_x: np.ndarray, new_y: np.ndarray, ridge: float = 100.0) -> np.ndarray:
    """Cosine of each new text with the text predicted from its image by ridge regression."""
    weight = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
    predicted = new_x @ weight
    lengths = np.linalg.norm(predicted, axis=1) * np.linalg.norm(new_y, axis=1)
    cosine: np.ndarray = (predicted * new_y).sum(1) / lengths
    return cosine


if __name__ == "__main__":
    raise SystemExit(main())
