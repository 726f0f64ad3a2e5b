"""The Trainers of transformers and Lightning, themselves."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from sremkit import SREM
from sremkit.errors import UserNotice
from sremkit.integrations.warmup import WarmupSteps

transformers = pytest.importorskip("transformers", reason="transformers is an optional extra")


class Linear(nn.Module):
    """Logits of images (b, 6) and texts (b, 6)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(6, 6)

    def forward(self, images: Tensor, texts: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits_per_image=self.project(images) @ texts.T)


def dataset(size: int = 32) -> list[dict[str, Tensor]]:
    g = torch.Generator().manual_seed(1)
    rows = torch.randn(size, 2, 6, generator=g)
    return [{"images": a, "texts": b, "image_ids": torch.tensor(k // 2)} for k, (a, b) in enumerate(rows)]


def train(
    folder: Path, *, warmup: WarmupSteps, steps: int, accumulate: int = 1, callbacks=()
) -> tuple[nn.Module, dict]:
    from sremkit.integrations.transformers_trainer import SREMTrainerMixin

    class PairTrainer(SREMTrainerMixin, transformers.Trainer):
        """Takes the rows in their order."""

        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = transformers.TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=8, gradient_accumulation_steps=accumulate,
        optim="sgd", learning_rate=1.0, lr_scheduler_type="constant", max_grad_norm=0.0, disable_tqdm=True,
        report_to="none", save_strategy="no", use_cpu=True, logging_steps=1, remove_unused_columns=False,
    )  # fmt: skip
    model = Linear()
    trainer = PairTrainer(
        model, arguments, train_dataset=dataset(), warmup=warmup, logit_bias=-1.0, callbacks=list(callbacks)
    )
    trainer.train()
    return model, trainer.state.log_history[0]


def loss_of(model: nn.Module, rows: list[dict[str, Tensor]], *, warmup: bool) -> Tensor:
    images, texts, ids = (torch.stack([row[key] for row in rows]) for key in ("images", "texts", "image_ids"))
    return SREM()(model(images, texts).logits_per_image - 1.0, warmup=warmup, image_ids=ids).total


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_of_the_trainer_follows_the_gradient_of_srem(tmp_path: Path, accumulate: int) -> None:
    early = pytest.warns(UserNotice, match="ended too early") if accumulate == 2 else contextlib.nullcontext()
    with early:
        trained, logs = train(tmp_path, warmup=WarmupSteps(1), steps=1, accumulate=accumulate)
    by_hand, rows = Linear(), dataset()
    total = loss_of(by_hand, rows[:8], warmup=True)
    if accumulate == 2:  # the mean over both batches, of which the first alone is the warm-up
        total = (total + loss_of(by_hand, rows[8:16], warmup=False)) / 2
    total.backward()
    expected = by_hand.project.weight - by_hand.project.weight.grad
    torch.testing.assert_close(trained.project.weight, expected)
    assert logs["loss"] == pytest.approx(total.item(), abs=1e-3)


def test_the_trainers_callback_reports_the_end_of_the_warm_up_once(tmp_path: Path, capsys) -> None:
    from sremkit.integrations.transformers_trainer import warmup_callback

    warmup = WarmupSteps(3)
    train(tmp_path, warmup=warmup, steps=6, callbacks=[warmup_callback(warmup)])
    printed = capsys.readouterr().out
    assert printed.count("the warm-up is over") == 1
    assert "step 3: the warm-up is over: 3 batches" in printed


@pytest.mark.filterwarnings("ignore")
def test_lightnings_callback_reports_the_end_and_its_checkpoint_keeps_the_state(tmp_path: Path, capsys) -> None:
    pl = pytest.importorskip("pytorch_lightning", reason="Lightning is an optional package")
    from sremkit.integrations.lightning import warmup_callback

    class Module(pl.LightningModule):
        def __init__(self, warmup: WarmupSteps) -> None:
            super().__init__()
            self.model, self.criterion, self.warmup = Linear(), SREM(), warmup

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            logits = self.model(batch["images"], batch["texts"]).logits_per_image
            terms = self.criterion(logits, warmup=self.warmup.warmup)
            self.warmup.update(terms)
            return terms.total

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def trainer(epochs: int, warmup: WarmupSteps):
        quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
        return pl.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            default_root_dir=tmp_path,
            callbacks=[warmup_callback(warmup)],
            **quiet,
        )

    loader = torch.utils.data.DataLoader(dataset(), batch_size=8)  # four batches
    warmup = WarmupSteps(6)
    first = trainer(1, warmup)
    first.fit(Module(warmup), loader)
    first.save_checkpoint(tmp_path / "one.ckpt")
    assert "the warm-up is over" not in capsys.readouterr().out
    resumed = WarmupSteps(6)
    trainer(2, resumed).fit(Module(resumed), loader, ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    assert "step 6: the warm-up is over: 6 batches" in capsys.readouterr().out
    assert resumed.done_steps == 8
