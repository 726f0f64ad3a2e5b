"""Pictures to features: EfficientNet-lite2 at 260 pixels, a 6×6 grid of places and their mean.

ONNX Runtime computes it: on a processor it is about a third faster than PyTorch with channels last and
folded batch normalisation. One picture at a time is as fast as many, because its feature maps then stay in
the processor's cache, and a picture's features never depend on what else was in a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from sremkit.extras import require
from sremkit.features import efficientnet
from sremkit.features.onnx_file import OnnxNetwork

if TYPE_CHECKING:
    from PIL.Image import Image

GRID_SIDE = 6
CENTRE = 260 / 292  # share of the shorter side that the network is shown, as when it was trained


class PictureFeatures(NamedTuple):
    """What the encoder says of one picture."""

    pooled: np.ndarray  # (1280,) float32, the mean of all places
    grid: np.ndarray  # (36, 1280) float32, row by row from the top left


class PictureEncoder:
    """EfficientNet-lite2 with its pretrained weights; loaded when the first picture comes.

    Args:
        threads: processor cores that one picture may use.
    """

    description = f"{efficientnet.NAME}, central square, {efficientnet.PIXELS} px"
    dim = efficientnet.DIM
    num_places = GRID_SIDE * GRID_SIDE

    def __init__(self, *, threads: int = 1) -> None:
        self.threads = threads
        self._model: bytes | None = None
        self._session: Any = None

    def load(self) -> None:
        """Read the weights now, so that processes forked later need not, and a missing package shows early."""
        require("onnxruntime", extra="features", purpose="turn pictures into features")
        if self._model is None:
            self._model = efficientnet.onnx_model()

    def encode(self, picture: Image) -> PictureFeatures:
        if self._session is None:
            self._session = self._start()
        (feature_map,) = self._session.run(None, {OnnxNetwork.INPUT: prepare(picture)})  # (1, 1280, 9, 9)
        places = torch.from_numpy(feature_map)
        grid = F.adaptive_avg_pool2d(places, GRID_SIDE)  # (1, 1280, 6, 6)
        return PictureFeatures(
            pooled=places.mean(dim=(0, 2, 3)).numpy(),
            grid=grid.flatten(2).squeeze(0).T.contiguous().numpy(),
        )

    def _start(self) -> Any:
        self.load()
        runtime = require("onnxruntime", extra="features", purpose="turn pictures into features")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        # Waiting threads would otherwise burn the time of whoever decodes the next picture.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return runtime.InferenceSession(self._model, options, providers=["CPUExecutionProvider"])

    def __getstate__(self) -> dict[str, Any]:  # a running session belongs to its own process
        return {**self.__dict__, "_session": None}


def prepare(picture: Image) -> np.ndarray:
    """Pixels as the network takes them: (1, 3, 260, 260) float32, (rgb - 127) / 128 of the central square."""
    resampling = require("PIL.Image", extra="features", purpose="read pictures").Resampling
    side = min(picture.size) * CENTRE
    left, top = (picture.width - side) / 2, (picture.height - side) / 2
    square = picture.convert("RGB").resize(
        (efficientnet.PIXELS, efficientnet.PIXELS),
        resampling.BICUBIC,
        box=(left, top, left + side, top + side),
    )
    pixels = (np.asarray(square, dtype=np.float32) - 127.0) / 128.0  # (260, 260, 3)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])
