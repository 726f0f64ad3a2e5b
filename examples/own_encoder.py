"""SREM with your own encoders: any that compute one vector per image and one per text.

Images of coloured squares are paired with sentences of word ids; a third of the pairs is wrong. The encoders are a
small convolutional network and a bag of words. `image_ids` identifies pairs that share an image, so that two texts
of one image are never each other's negatives.

    python examples/own_encoder.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from sremkit import SREM

NUM_IMAGES, COLOURS, PLACES = 512, 6, 16


class ImageEncoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, width))

    def forward(self, pixels: Tensor) -> Tensor:  # (b, 3, 8, 8) -> (b, width)
        return normalize(self.layers(pixels))


class TextEncoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(COLOURS * PLACES, width)

    def forward(self, words: Tensor) -> Tensor:  # (b, w) -> (b, width)
        return normalize(self.words(words))


def draw_scenes(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images with three coloured squares in 16 places, and for each the three words that name them."""
    palette = torch.rand(COLOURS, 3, generator=generator)
    pixels, sentences = torch.zeros(NUM_IMAGES, 3, 8, 8), torch.zeros(NUM_IMAGES, 3, dtype=torch.long)
    for canvas, sentence in zip(pixels, sentences, strict=True):
        places = torch.randperm(PLACES, generator=generator)[:3]
        colours = torch.randint(COLOURS, (3,), generator=generator)
        for place, colour in zip(places.tolist(), colours.tolist(), strict=True):
            row, column = 2 * (place // 4), 2 * (place % 4)
            canvas[:, row : row + 2, column : column + 2] = palette[colour][:, None, None]
        sentence[:] = colours * PLACES + places
    return pixels, sentences


def main() -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    pixels, sentences = draw_scenes(generator)
    # Two texts per image: all three words, and the first two (the second one twice).
    image_of_text = torch.arange(NUM_IMAGES).repeat(2)
    texts = torch.cat([sentences, sentences[:, [0, 1, 1]]])
    is_wrong = torch.rand(len(texts), generator=generator) < 1 / 3
    given = image_of_text.clone()
    given[is_wrong] = given[is_wrong].roll(1)
    is_wrong = given != image_of_text

    encode_image, encode_text = ImageEncoder(32), TextEncoder(32)
    log_scale, bias = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(-4.0))
    criterion = SREM()
    learned = [*encode_image.parameters(), *encode_text.parameters(), log_scale, bias]
    optimizer = torch.optim.Adam(learned, lr=0.01)
    for epoch in range(12):
        losses = []
        for pairs in torch.randperm(len(texts), generator=generator).split(64):
            images = encode_image(pixels[given[pairs]])
            out = criterion.from_embeddings(
                images,
                encode_text(texts[pairs]),
                log_scale.exp(),
                bias,
                image_ids=given[pairs],
                warmup=epoch < 8,
            )
            optimizer.zero_grad()
            out.total.backward()
            optimizer.step()
            losses.append(out.total.item())
        if epoch in (0, 7, 11):
            print(f"epoch {epoch + 1:2d}: loss {sum(losses) / len(losses):.3f}")

    with torch.no_grad():
        scores = (encode_image(pixels[given]) * encode_text(texts)).sum(dim=1)  # of each given pair
    suspects = scores.argsort()[: int(is_wrong.sum())]
    print(f"of the {len(suspects)} pairs that fit worst, {is_wrong[suspects].float().mean():.0%} are wrong")


if __name__ == "__main__":
    main()
