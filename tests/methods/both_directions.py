"""For methods that are one loss of the rows and the same of the columns: what they give, and wrong twins of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sremkit.data.batch import Batch
from sremkit.methods import Method
from sremkit.objectives import Loss

Three = tuple[float, float, float]  # total, image to text, text to image

ROWS = 6
APART = list(range(ROWS))
SHARED = [4, 0, 4, 2, 4, 0]  # three pairs of one image, two of another, one alone


def batch_of(images: list[int]) -> Batch:
    return Batch(pair_id=torch.arange(len(images)), image_id=torch.tensor(images))


def loss_of(method: Method, logits: Tensor, images: list[int], *, warmup: bool = False) -> Loss:
    return method.loss(lambda _: logits, batch_of(images), warmup=warmup)


def found(loss: Loss) -> Three:
    return loss.total.item(), loss.parts["i2t"].item(), loss.parts["t2i"].item()


def slopes(value: Callable[[list[list[float]]], float], logits: Tensor, step: float = 1e-5) -> Tensor:
    """The gradient of a slow oracle by central differences, one logit after the other."""
    gradient = torch.zeros_like(logits)
    for i in range(len(logits)):
        for j in range(len(logits)):
            ends = []
            for move in (step, -step):
                moved = logits.clone()
                moved[i, j] += move
                ends.append(value(moved.tolist()))
            gradient[i, j] = (ends[0] - ends[1]) / (2 * step)
    return gradient


#: From the right losses of rows and columns: how a method may put them together wrongly, total first.
WRONGLY_JOINED: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]] = {
    "images look for texts only": lambda rows, columns: (rows, rows, columns),
    "texts look for images only": lambda rows, columns: (columns, rows, columns),
    "the rows twice": lambda rows, columns: (rows + rows, rows, rows),
    "half the rows twice": lambda rows, columns: (rows, rows, rows),
    "difference": lambda rows, columns: (rows - columns, rows, columns),
}
