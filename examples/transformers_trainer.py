"""SREM in the Trainer of transformers, with a callback that reports the end of the warm-up.

A CLIP model with a small random configuration, so that nothing is downloaded. An image is the sum of two patterns and
its caption names both; a quarter of the captions is wrong. Needs: pip install transformers accelerate

    python examples/transformers_trainer.py
"""

from __future__ import annotations

import tempfile

import torch
from transformers import CLIPConfig, CLIPModel, Trainer, TrainingArguments

from sremkit import WarmupMonitor
from sremkit.integrations.transformers_trainer import SREMTrainerMixin, warmup_callback


class PairTrainer(SREMTrainerMixin, Trainer):
    """Trainer whose loss is SREM."""


torch.manual_seed(0)
tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
words = {"vocab_size": 35, "max_position_embeddings": 4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
model = CLIPModel(
    CLIPConfig(
        text_config=tower | words,
        vision_config=tower | {"image_size": 16, "patch_size": 8},
        projection_dim=24,
        logit_scale_init_value=2.0,
    )
)

kinds = torch.cartesian_prod(torch.arange(16), torch.arange(16))  # (256, 2): numbers of two patterns
patterns = torch.randn(2, 16, 3, 16, 16)
images = patterns[0, kinds[:, 0]] + patterns[1, kinds[:, 1]]
ones = torch.ones(256, dtype=torch.long)
captions = torch.stack([ones, 3 + kinds[:, 0], 19 + kinds[:, 1], 2 * ones], dim=1)  # begin, two words, end
is_wrong = torch.arange(256) % 4 == 0
captions[is_wrong] = captions[is_wrong].roll(5, dims=0)
dataset = [{"pixel_values": image, "input_ids": caption} for image, caption in zip(images, captions, strict=True)]

warmup = WarmupMonitor(interval=8)
with tempfile.TemporaryDirectory() as folder:
    trainer = PairTrainer(
        model,
        TrainingArguments(
            folder,
            num_train_epochs=12,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            logging_steps=32,
            disable_tqdm=True,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
        ),
        train_dataset=dataset,
        warmup=warmup,
        logit_bias=-4.0,
        callbacks=[warmup_callback(warmup)],
    )
    trainer.train()

with torch.no_grad():
    fit = model.eval()(input_ids=captions, pixel_values=images).logits_per_image.diagonal()
suspects = fit.argsort()[: int(is_wrong.sum())]
print(f"of the {len(suspects)} pairs that fit worst, {is_wrong[suspects].float().mean():.0%} are wrong")
