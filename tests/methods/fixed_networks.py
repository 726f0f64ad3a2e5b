"""Two networks with fixed outputs, for methods that score a batch themselves."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods import Method, TrainingContext, build_method
from sremkit.models.matcher import Encoded, Matcher


class FixedNetwork(Matcher):
    """Gives fixed logits between all pairs, and fixed global vectors; keeps the modes it was called in."""

    def __init__(self, logits: Tensor, images: Tensor, texts: Tensor) -> None:
        super().__init__()
        self.logits, self.images, self.texts = logits, images, texts
        self.modes: list[bool] = []

    def encode_images(self, batch: Batch) -> Encoded:
        self.modes.append(self.training)
        self.rows = batch.pair_id
        return Encoded(pooled=self.images[batch.pair_id])

    def encode_texts(self, batch: Batch) -> Encoded:
        return Encoded(pooled=self.texts[batch.pair_id])

    def compare(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.logits[self.rows][:, self.rows]


class FixedTwins(Matcher):
    def __init__(self, first: FixedNetwork, second: FixedNetwork) -> None:
        super().__init__()
        self.members = torch.nn.ModuleList([first, second])

    def networks(self) -> list[Matcher]:
        return list(self.members)  # type: ignore[arg-type]


def batch_of(n: int, image_ids: list[int] | None = None) -> Batch:
    return Batch(pair_id=torch.arange(n), image_id=torch.tensor(image_ids if image_ids is not None else list(range(n))))


class Stage:
    """A started method with two networks of fixed outputs and a batch of all n pairs."""

    def __init__(self, name: str, n: int = 24, *, seed: int = 0, **options: object) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.n = n
        lift = 2 * torch.eye(n, dtype=torch.float64)
        self.trained = draw(2, n, n) + lift  # logits of both networks as they are trained
        self.seen = draw(2, n, n) + lift  # and in evaluation mode
        self.images, self.texts = draw(2, n, 5) + 1, draw(2, n, 5) + 1
        self.twins = FixedTwins(*(FixedNetwork(self.seen[k], self.images[k], self.texts[k]) for k in (0, 1)))
        self.method: Method = build_method(name, **options)
        self.batch = batch_of(n)
        self.method.start(TrainingContext(n, torch.device("cpu"), self.twins, self._every_pair))
        clean = torch.rand(2, n, generator=generator) < 0.6
        probability = torch.rand(2, n, generator=generator, dtype=torch.float64) / 2
        self.set_split(clean, torch.where(clean, probability + 0.5, probability))

    def set_split(self, clean: Tensor, probability: Tensor, num_splits: int = 1) -> None:
        self.method.clean = clean
        self.method.probability = probability
        self.method.num_splits = num_splits
        self.method.learns_noisy = num_splits > self.method.noisy_after

    def _every_pair(self, round_: int) -> Iterator[Batch]:
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(round_))
        for rows in order.chunk(2):
            yield Batch(pair_id=rows, image_id=rows)

    def total(self, *, warmup: bool = False, trained: Tensor | None = None) -> Tensor:
        logits = self.trained if trained is None else trained
        return self.method.loss(lambda batch: logits, self.batch, warmup=warmup).total
