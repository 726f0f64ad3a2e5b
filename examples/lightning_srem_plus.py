"""SREM-plus in a LightningModule: the memory is part of the checkpoint, the epoch ends with `finish_epoch`.

40 % of the pairs are wrong. Needs: pip install lightning

    python examples/lightning_srem_plus.py
"""

from __future__ import annotations

import logging
import tempfile
import warnings

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset

from sremkit import SREMPlus


class DualEncoder(pl.LightningModule):
    def __init__(self, num_pairs: int) -> None:
        super().__init__()
        self.to_image, self.to_text = nn.Linear(32, 16), nn.Linear(24, 16)
        self.scale = nn.Parameter(torch.tensor(8.0))
        self.criterion = SREMPlus(num_pairs)
        self.warmup = True

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        images, texts, pair_ids = batch
        logits = self.scale * normalize(self.to_image(images)) @ normalize(self.to_text(texts)).T
        loss = self.criterion(logits, pair_ids, warmup=self.warmup)
        self.log("loss", loss.total)
        return loss.total

    def on_train_epoch_end(self) -> None:
        self.criterion.finish_epoch()
        if self.warmup and self.criterion.is_ready():
            self.warmup = False
            self.print(f"epoch {self.current_epoch + 1}: the warm-up is over: {self.criterion.message()}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")
torch.manual_seed(0)
latent = torch.randn(512, 8)  # shared by an image and its text
images, texts = latent @ torch.randn(8, 32), latent @ torch.randn(8, 24)
is_wrong = torch.arange(512) < 205
texts[is_wrong] = texts[is_wrong].roll(1, dims=0)
loader = DataLoader(TensorDataset(images, texts, torch.arange(512)), batch_size=64, shuffle=True)

model = DualEncoder(len(images))
with tempfile.TemporaryDirectory() as folder:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(max_epochs=15, accelerator="cpu", default_root_dir=folder, **quiet)
    trainer.fit(model, loader)
    saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)["state_dict"]
print(f"the checkpoint keeps the memory of {len(saved['criterion.memory'])} pairs")
is_suspect = model.criterion.clean_prob() < 0.5
print(f"of the {int(is_suspect.sum())} pairs that are probably wrong, {is_wrong[is_suspect].float().mean():.0%} are")
