"""Preprocessing of images as an image processor of transformers does it: resize, crop, normalise.

Resizing and cropping give uint8 pixels, which can be stored; normalising is a linear map, which a device computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from sremkit.errors import DataError
from sremkit.extras import require

if TYPE_CHECKING:
    from PIL.Image import Image

BICUBIC = 3  # as Pillow and the processors number it
MAX_SIDE = 10_000  # pixels


@dataclass(frozen=True)
class ImageTransform:
    """From a decoded RGB image to normalised pixels (3, height, width).

    Args:
        height, width: of the result.
        shortest_edge: resize the shorter side to this and crop the centre; None: resize to height and width, whatever
            the proportions.
        resample: Pillow's number of the filter; 2 is bilinear, 3 bicubic.
        mean, std: of each channel, on the scale of 0 to 1.
    """

    height: int
    width: int
    shortest_edge: int | None = None
    resample: int = BICUBIC
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    #: Mean and standard deviation that the first CLIP models were trained with.
    CLIP: ClassVar[dict[str, Any]] = {
        "mean": (0.48145466, 0.4578275, 0.40821073),
        "std": (0.26862954, 0.26130258, 0.27577711),
    }

    def __post_init__(self) -> None:
        sizes = (self.height, self.width, self.shortest_edge or 1)
        wrong_std = len(self.mean) != 3 or len(self.std) != 3 or not min(self.std) > 0
        if not 1 <= min(sizes) <= max(sizes) <= MAX_SIDE or wrong_std or self.resample not in range(6):
            raise DataError(
                f"{self} cannot prepare images: sizes are from 1 to {MAX_SIDE:,}, std is positive for 3 channels, and "
                "resample a number from 0 to 5"
            )
        if self.shortest_edge is not None and self.shortest_edge < max(self.height, self.width):
            raise DataError(
                f"the images are resized to a shorter side of {self.shortest_edge}, from which {self.height} x "
                f"{self.width} pixels cannot be cropped; correct the sizes of the image processor"
            )

    @classmethod
    def from_processor(cls, config: Mapping[str, Any], *, name: str = "the image processor") -> Self:
        """Read a `preprocessor_config.json`."""
        try:
            return cls._from_processor(config, name)
        except (TypeError, ValueError, AttributeError, OverflowError) as cause:
            if isinstance(cause, DataError):
                raise
            raise DataError(
                f"{name} is no configuration of an image processor ({cause}); copy the model again"
            ) from cause

    @classmethod
    def _from_processor(cls, config: Mapping[str, Any], name: str) -> Self:
        size, crop = _size(config.get("size"), name), _size(config.get("crop_size"), name)
        for step in ("do_resize", "do_rescale", "do_normalize"):
            if config.get(step, True) is not True:
                raise DataError(f"{name} has {step} = {config[step]!r}; only processors that do this are supported")
        if abs(float(config.get("rescale_factor", 1 / 255)) * 255 - 1) > 1e-6:
            raise DataError(f"{name} has rescale_factor = {config['rescale_factor']}; only 1/255 is supported")
        edge = size.get("shortest_edge")
        target = crop if config.get("do_center_crop", edge is not None) and crop else size
        if edge is None and target != size:
            raise DataError(f"{name} resizes to {size} and crops {target}; crops after an exact size are not supported")
        height = target.get("height", target.get("shortest_edge"))
        width = target.get("width", target.get("shortest_edge"))
        if height is None or width is None or (edge is not None and target is size):
            raise DataError(f"{name} has size = {config.get('size')!r} and crop_size = {config.get('crop_size')!r}, "
                            "which do not give images of one size")  # fmt: skip
        return cls(
            height=int(height),
            width=int(width),
            shortest_edge=None if edge is None else int(edge),
            resample=int(config.get("resample", BICUBIC)),
            mean=_of_channels(config.get("image_mean", cls.CLIP["mean"])),
            std=_of_channels(config.get("image_std", cls.CLIP["std"])),
        )

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        return cls(**{**stored, "mean": tuple(stored["mean"]), "std": tuple(stored["std"])})

    def to_dict(self) -> dict[str, Any]:
        """For JSON and TOML; without absent values."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return {key: value for key, value in values.items() if value is not None}

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.height, self.width

    def resize(self, image: Image) -> np.ndarray:
        """The resized and cropped pixels, (3, height, width) uint8."""
        resampling = require("PIL.Image", extra="data", purpose="resize images").Resampling
        image = image.convert("RGB")
        size = (self.width, self.height)
        if self.shortest_edge is not None:
            short, long = sorted(image.size)
            # Rounded down, as transformers and torchvision do.
            resized = int(self.shortest_edge * long / short)
            size = (self.shortest_edge, resized) if image.width <= image.height else (resized, self.shortest_edge)
        if image.size != size:
            image = image.resize(size, resampling(self.resample))
        left, top = (image.width - self.width) // 2, (image.height - self.height) // 2
        if (left, top) != (0, 0) or image.size != (self.width, self.height):
            image = image.crop((left, top, left + self.width, top + self.height))
        return np.asarray(image).transpose(2, 0, 1).copy()

    @property
    def scale(self) -> np.ndarray:
        """(3, 1, 1) float32: by which uint8 pixels are multiplied."""
        return (1 / (255 * np.array(self.std, dtype=np.float64))).astype(np.float32).reshape(3, 1, 1)

    @property
    def shift(self) -> np.ndarray:
        """(3, 1, 1) float32: what is then added."""
        return (-np.array(self.mean) / np.array(self.std)).astype(np.float32).reshape(3, 1, 1)

    def normalize(self, pixels: Tensor) -> Tensor:
        """From uint8 (..., 3, h, w) to float32, (pixel / 255 - mean) / std."""
        scale, shift = (torch.from_numpy(values).to(pixels.device) for values in (self.scale, self.shift))
        return pixels.to(torch.float32).mul_(scale).add_(shift)

    def __call__(self, image: Image) -> Tensor:
        """The normalised pixels of one image, (3, height, width) float32."""
        return self.normalize(torch.from_numpy(self.resize(image)))


def _of_channels(values: Sequence[float]) -> tuple[float, float, float]:
    """One number for each of red, green and blue."""
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _size(size: Any, name: str) -> dict[str, int]:
    """A size as processors write it: a table, a list of height and width, or one number."""
    if size is None:
        return {}
    if isinstance(size, int):
        return {"shortest_edge": size}
    if isinstance(size, list | tuple) and len(size) == 2:
        return {"height": size[0], "width": size[1]}
    if isinstance(size, Mapping) and size and set(size) <= {"height", "width", "shortest_edge"}:
        return dict(size)
    raise DataError(f"{name} has a size of {size!r}; known are shortest_edge, or height and width")
