"""SREM in place of the contrastive loss of a dual encoder from transformers.

A CLIP model with a small random configuration, so that nothing is downloaded; for a real one write
`CLIPModel.from_pretrained(...)`. An image is the sum of two patterns and its caption names both; a quarter of the
captions is wrong. Needs transformers: pip install transformers

    python examples/transformers_dual_encoder.py
"""

from __future__ import annotations

import torch
from transformers import CLIPConfig, CLIPModel

from sremkit import SREM

torch.manual_seed(0)
tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
words = {
    "vocab_size": 35,
    "max_position_embeddings": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
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

bias = torch.nn.Parameter(torch.tensor(-4.0))  # the energy margins need negative logits for mismatches
criterion = SREM()
optimizer = torch.optim.AdamW([*model.parameters(), bias], lr=3e-3)
model.train()
for epoch in range(10):
    losses = []
    for pairs in torch.randperm(256).split(32):
        output = model(input_ids=captions[pairs], pixel_values=images[pairs])
        out = criterion(output.logits_per_image + bias, warmup=epoch < 7)  # rows images, columns texts
        optimizer.zero_grad()
        out.total.backward()
        optimizer.step()
        losses.append(out.total.item())
    if epoch in (0, 6, 9):
        print(f"epoch {epoch + 1:2d}: loss {sum(losses) / len(losses):.3f}")

with torch.no_grad():
    fit = model(input_ids=captions, pixel_values=images).logits_per_image.diagonal()
suspects = fit.argsort()[: int(is_wrong.sum())]
print(f"of the {len(suspects)} pairs that fit worst, {is_wrong[suspects].float().mean():.0%} are wrong")
