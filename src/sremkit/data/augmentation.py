"""Augmentation of pixels in training: random crops, and mirroring only on request, because captions say left and right.

Random numbers are a function of seed, epoch and pair, so an epoch is the same after an interruption and for any number
of processes. The crops are taken from the resized image, on the device of the batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.data.batch import Batch

STREAM = 0xA06  # separates these random numbers from those of the data order
MAX_LOG_RATIO = float(np.log(4 / 3))  # of width to height


class Augmentation:
    """Random crops, resized to the size of the image.

    Args:
        num_pairs: of the collection; rows of batches count from 0 to this.
        min_area: smallest share of the image that a crop shows; 1 shows the whole image.
        flip: share of images that are mirrored.
    """

    def __init__(self, num_pairs: int, *, seed: int, min_area: float = 1.0, flip: float = 0.0) -> None:
        self.num_pairs, self.seed, self.min_area, self.flip = num_pairs, seed, min_area, flip
        self.is_on = min_area < 1 or flip > 0
        self._epoch, self._drawn = -1, np.zeros((0, 5))

    def boxes(self, rows: np.ndarray, epoch: int) -> np.ndarray:
        """Crops (k, 4) of these pairs: centre x, centre y, half width, half height, in [-1, 1]; negative: mirrored."""
        if epoch != self._epoch:
            rng = np.random.default_rng([self.seed, epoch, STREAM])
            self._epoch, self._drawn = epoch, rng.random((self.num_pairs, 5))
        area, ratio, x, y, mirrored = self._drawn[rows].T
        area = self.min_area + (1 - self.min_area) * area
        # A crop of the whole image has its proportions; a small one can have any.
        spread = np.minimum(MAX_LOG_RATIO, -np.log(area)) * (2 * ratio - 1)
        half_width, half_height = np.sqrt(area * np.exp(spread)), np.sqrt(area * np.exp(-spread))
        centre_x, centre_y = (2 * x - 1) * (1 - half_width), (2 * y - 1) * (1 - half_height)
        half_width = np.where(mirrored < self.flip, -half_width, half_width)
        return np.stack([centre_x, centre_y, half_width, half_height], axis=1).astype(np.float32)

    def __call__(self, batch: Batch, rows: np.ndarray, epoch: int) -> Batch:
        """The batch with augmented images.

        Args:
            rows: its pair numbers, which the host need not read from the device.
        """
        if not self.is_on or batch.images is None:
            return batch
        boxes = torch.from_numpy(self.boxes(rows, epoch)).to(batch.images.device, non_blocking=True)
        return replace(batch, images=crop_images(batch.images, boxes))


def crop_images(images: Tensor, boxes: Tensor) -> Tensor:
    """Bilinear crops at the size of the images.

    Args:
        images: (b, 3, h, w); boxes: (b, 4) as `Augmentation.boxes`.
    """
    centre_x, centre_y, half_width, half_height = boxes.unbind(1)
    zero = torch.zeros_like(centre_x)
    theta = torch.stack(
        [torch.stack([half_width, zero, centre_x], 1), torch.stack([zero, half_height, centre_y], 1)], dim=1
    )  # (b, 2, 3)
    grid = F.affine_grid(theta.to(images.dtype), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
