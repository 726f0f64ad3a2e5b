"""A dual encoder as two ONNX files, one for each side; the similarity is scale · image · text + bias.

    image.onnx    image (b, image_dim) → embedding (b, embed_size), of unit length
    text.onnx     text (b, text_dim)   → embedding (b, embed_size), of unit length

Both files are compared with the model in ONNX Runtime before the export counts as done.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from sremkit.errors import UserError
from sremkit.extras import require
from sremkit.io import read_json, write_json
from sremkit.model_files.folder import CONFIG
from sremkit.models import Matcher
from sremkit.models.backbones.dual import DualEncoder

TOLERANCE = 1e-4  # largest difference of an entry of a unit vector
EXTRA = "onnx"


def check_onnx(matcher: Matcher) -> None:
    """Raise unless this model can be exported and the packages are installed."""
    if not isinstance(matcher, DualEncoder):
        raise UserError(
            f"the model is '{matcher.name}', and ONNX files are written only for dual encoders on feature vectors "
            "('dual'); leave --onnx out"
        )
    for package in ("onnx", "onnxscript", "onnxruntime"):
        require(package, extra=EXTRA, purpose="export to ONNX")


def export_onnx(folder: Path, matcher: Matcher) -> float:
    """Write both files into an exported folder; return the largest difference that ONNX Runtime found."""
    check_onnx(matcher)
    assert isinstance(matcher, DualEncoder)
    sides = {"image": (matcher.image_tower, "image_dim"), "text": (matcher.text_tower, "text_dim")}
    differences = [
        _export_side(folder / f"{side}.onnx", tower.cpu().eval(), side, matcher.options[dim])
        for side, (tower, dim) in sides.items()
    ]
    config = read_json(folder / CONFIG)
    scale, bias = matcher.to_logit.log_scale.exp().item(), matcher.to_logit.bias.item()
    config["onnx"] = {"image": "image.onnx", "text": "text.onnx", "logit_scale": scale, "logit_bias": bias}
    write_json(folder / CONFIG, config)
    return max(differences)


def _export_side(path: Path, tower: nn.Module, side: str, dim: int) -> float:
    example = torch.randn(2, dim, generator=torch.Generator().manual_seed(0))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it reports every operator of torchvision as missing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own deprecations
        program = torch.onnx.export(
            tower,
            (example,),
            input_names=[side],
            output_names=["embedding"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        program.save(str(path), external_data=False)
    difference = max(_difference(path, tower, side, size, dim) for size in (1, 7))
    if difference > TOLERANCE:
        path.unlink()
        raise UserError(
            f"{path.name} differs from the model by {difference:.1e} in ONNX Runtime, more than {TOLERANCE:g}; it was "
            "removed"
        )
    return difference


@torch.no_grad()
def _difference(path: Path, tower: nn.Module, side: str, size: int, dim: int) -> float:
    """The largest difference between ONNX Runtime and the model."""
    onnxruntime = require("onnxruntime", extra=EXTRA, purpose="check the ONNX files")
    given: Tensor = torch.randn(size, dim, generator=torch.Generator().manual_seed(size))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    [found] = session.run(None, {side: given.numpy()})
    return float((torch.from_numpy(found) - tower(given)).abs().max())
