"""Adapters with packages that the default environment must not hold (`make test-integrations`)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sremkit import SREM, WarmupMonitor
from sremkit.integrations.open_clip import OpenCLIPLoss
from sremkit.integrations.sentence_transformers import SentenceTransformersLoss

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]


def load(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError) as cause:  # RuntimeError: torchvision of another build than torch
        pytest.skip(f"{package} does not load here ({str(cause).splitlines()[0]}); run `make test-integrations`")


def test_a_model_of_open_clip_trains_with_the_loss_in_place_of_its_own() -> None:
    open_clip = load("open_clip")
    torch.manual_seed(0)
    model = open_clip.CLIP(
        embed_dim=16,
        vision_cfg=dict(image_size=16, patch_size=8, width=32, layers=1, head_width=16),
        text_cfg=dict(context_length=4, vocab_size=40, width=32, heads=2, layers=1),
        init_logit_bias=-5.0,
        output_dict=True,
    )
    images = torch.randn(64, 3, 16, 16)
    texts = torch.stack([torch.ones(64), 3 + torch.arange(64) // 8, 11 + torch.arange(64) % 8, 39 * torch.ones(64)], 1)
    loss, original = OpenCLIPLoss(warmup=WarmupMonitor(interval=2)), open_clip.ClipLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    totals = []
    for _ in range(150):
        model_out = model(images, texts.long())
        assert set(original(**model_out, output_dict=True)) == {"contrastive_loss"}  # called in the same way
        losses = loss(**model_out, output_dict=True)
        total = sum(losses.values())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        totals.append(total.item())
    assert not loss.warmup.warmup
    assert totals[-1] < totals[0]
    with torch.no_grad():
        out = model(images, texts.long())
        logits = out["logit_scale"] * out["image_features"] @ out["text_features"].T + out["logit_bias"]
    assert (logits.argmax(1) == torch.arange(64)).float().mean() > 0.9
    torch.testing.assert_close(loss.eval()(**out), SREM()(logits).total)


class BagOfWords(nn.Module):
    """A module of sentence-transformers that reads word numbers from text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(80, 24)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**features, "sentence_embedding": self.embed(features["input_ids"])}

    def preprocess(self, texts: list[str], **options: Any) -> dict[str, Tensor]:
        return {"input_ids": torch.tensor([[int(word) for word in text.split()] for text in texts])}

    tokenize = preprocess

    def save(self, *args: Any, **options: Any) -> None:
        raise NotImplementedError


def test_the_trainer_of_sentence_transformers_optimizes_the_loss_and_its_scale(tmp_path: Path) -> None:
    datasets, package = load("datasets"), load("sentence_transformers")
    torch.manual_seed(0)
    words = torch.stack([torch.randperm(40)[:4] for _ in range(256)])
    columns = [[" ".join(map(str, row)) for row in rows.tolist()] for rows in (words, 40 + torch.randperm(40)[words])]
    model = package.SentenceTransformer(modules=[BagOfWords()], device="cpu")
    loss = SentenceTransformersLoss(model, warmup=WarmupMonitor(interval=8))
    before = loss.log_scale.item()
    arguments = package.SentenceTransformerTrainingArguments(
        str(tmp_path), num_train_epochs=20, per_device_train_batch_size=64, learning_rate=0.03, use_cpu=True,
        report_to="none", save_strategy="no", logging_steps=20, disable_tqdm=True,
    )  # fmt: skip
    dataset = datasets.Dataset.from_dict({"image": columns[0], "text": columns[1]})
    trainer = package.SentenceTransformerTrainer(model, arguments, train_dataset=dataset, loss=loss)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < losses[0]
    assert loss.log_scale.item() != before
