"""Published checkpoints of the SGRAF family (`.pth.tar`), read without running code.

SGRAF and the methods built on its code store a list of three state dicts, of the image encoder, the text encoder and
the similarity, under "model"; NCR and those built on it store two such lists, under "model_A" and "model_B". They are
read with `weights_only`, so that a file can hold tensors and plain values only.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sremkit.models import Matcher, build_matcher
from sremkit.training.checkpoint import CheckpointError

#: Values that these files hold apart from tensors: options, and numbers of NumPy. To build them runs no code of a file.
_SCALAR = np.float64(0).__reduce__()[0]
PLAIN_VALUES: list[Any] = [
    argparse.Namespace,
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
    np.dtype,
    np.dtypes.Float64DType,
    np.dtypes.Float32DType,
    np.dtypes.Int64DType,
]

#: Pattern of a published name (encoder number, parameter) and our name.
NAMES = [
    (r"0\.fc\.", "regions.project."),
    (r"1\.embed\.", "words.embed."),
    (r"1\.cap_rnn\.", "words.gru."),
    (r"2\.v_global_w\.embedding_local\.0\.", "region_attention.local."),
    (r"2\.v_global_w\.embedding_local\.1\.", "region_attention.local_norm."),
    (r"2\.v_global_w\.embedding_global\.0\.", "region_attention.mean."),
    (r"2\.v_global_w\.embedding_global\.1\.", "region_attention.mean_norm."),
    (r"2\.v_global_w\.embedding_common\.0\.", "region_attention.weight."),
    (r"2\.t_global_w\.embedding_local\.0\.", "word_attention.local."),
    (r"2\.t_global_w\.embedding_global\.0\.", "word_attention.mean."),
    (r"2\.t_global_w\.embedding_common\.0\.", "word_attention.weight."),
    (r"2\.sim_tranloc_w\.", "local_similarity."),
    (r"2\.sim_tranglo_w\.", "global_similarity."),
    (r"2\.sim_eval_w\.", "score."),
    (r"2\.SGR_module\.(\d+)\.graph_query_w\.", r"steps.\1.query."),
    (r"2\.SGR_module\.(\d+)\.graph_key_w\.", r"steps.\1.key."),
    (r"2\.SGR_module\.(\d+)\.sim_graph_w\.", r"steps.\1.graph."),
    (r"2\.SAF_module\.attn_sim_w\.", "filter."),
    (r"2\.SAF_module\.bn\.", "filter_norm."),
]


def load_published(path: str | Path) -> Matcher:
    """The model of a published checkpoint, in evaluation mode: `sgr`, `saf`, or two of them (`two-networks`).

    The vocabulary is a file of its own in these publications; read it with `Vocabulary.load`.
    """
    path = Path(path)
    stored = read_plain(path)
    if not isinstance(stored, dict):
        raise CheckpointError(f"{path} holds no table of a model; a checkpoint of SGRAF or NCR is expected")
    keys = ["model_A", "model_B"] if "model_A" in stored else ["model"]
    if any(key not in stored for key in keys):
        raise CheckpointError(
            f"{path} holds {', '.join(map(str, stored))}; expected are 'model', or 'model_A' and 'model_B'"
        )
    _check_options(path, stored.get("opt"))
    weights = [_renamed(path, stored[key]) for key in keys]
    name, options = _architecture(path, weights[0])
    members = [_filled(path, build_matcher(name, **options), each) for each in weights]
    if len(members) == 1:
        return members[0].eval()
    both = build_matcher("two-networks", member={"name": name, "options": options})
    both.load_state_dict({f"members.{k}.{key}": t for k, m in enumerate(members) for key, t in m.state_dict().items()})
    return both.eval()


def read_plain(path: Path) -> Any:
    """The content of a file of `torch.save`, if it consists of tensors and plain values."""
    try:
        with torch.serialization.safe_globals(PLAIN_VALUES):
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as cause:
        raise CheckpointError(f"{path} does not exist; check the folder and the spelling") from cause
    except UnpicklingError as cause:
        found = re.search(r"(?:GLOBAL|global) ([\w.]+)", str(cause))
        what = f" ({found.group(1)})" if found else ""
        raise CheckpointError(
            f"{path} holds other objects than tensors and plain values{what}, and reading those could run code; it was "
            "not read. If you trust its origin, save its state dicts alone with torch.save"
        ) from cause
    except (RuntimeError, EOFError, OSError, ValueError) as cause:
        raise CheckpointError(
            f"{path} cannot be read as a file of torch.save; copy it again if it was cut off"
        ) from cause


def _check_options(path: Path, options: Any) -> None:
    """Refuse what changes the computation without a trace in the weights."""
    for name in ("no_imgnorm", "no_txtnorm"):
        if getattr(options, name, False):
            raise CheckpointError(f"{path} was trained with {name}, which our models do not support")


def _renamed(path: Path, encoders: Any) -> dict[str, Tensor]:
    """The weights of one model under our names."""
    if not isinstance(encoders, list | tuple) or len(encoders) != 3 or not all(isinstance(e, dict) for e in encoders):
        raise CheckpointError(f"{path}: a model of this family is a list of three state dicts; this one is not")
    weights: dict[str, Tensor] = {}
    unknown = []
    for number, encoder in enumerate(encoders):
        for published, tensor in encoder.items():
            name = f"{number}.{str(published).removeprefix('module.')}"  # of DataParallel
            if name.endswith("num_batches_tracked"):
                continue
            matches = [(pattern, ours) for pattern, ours in NAMES if re.match(pattern, name)]
            if not matches or not isinstance(tensor, Tensor):
                unknown.append(str(published))
                continue
            [(pattern, ours)] = matches
            weights[re.sub(f"^{pattern}", ours, name)] = tensor
    if unknown:
        raise CheckpointError(f"{path} has weights that SGR and SAF do not have: {', '.join(unknown[:5])}")
    return weights


def _architecture(path: Path, weights: dict[str, Tensor]) -> tuple[str, dict[str, Any]]:
    """Name and options of the model, from the shapes of its weights."""

    def size(name: str, dim: int) -> int:
        if name not in weights or weights[name].ndim <= dim:
            raise CheckpointError(f"{path} has no weight for our '{name}'; it is not a complete SGR or SAF")
        return weights[name].shape[dim]

    if "words.gru.weight_ih_l1" in weights or "words.gru.weight_ih_l0_reverse" not in weights:
        raise CheckpointError(f"{path} has another GRU than one bidirectional layer, which SGR and SAF have")
    options = {
        "vocab_size": size("words.embed.weight", 0),
        "word_dim": size("words.embed.weight", 1),
        "image_dim": size("regions.project.weight", 1),
        "embed_size": size("regions.project.weight", 0),
        "sim_dim": size("local_similarity.weight", 0),
        "num_regions": size("region_attention.local_norm.weight", 0),
    }
    steps = {name.split(".")[1] for name in weights if name.startswith("steps.")}
    if steps:
        return "sgr", {**options, "num_steps": len(steps)}
    return "saf", options


def _filled(path: Path, matcher: Matcher, weights: dict[str, Tensor]) -> Matcher:
    """The model with these weights; all of them, and each of the right shape."""
    expected = {name: tuple(tensor.shape) for name, tensor in matcher.state_dict().items()}
    missing = sorted(set(expected) - set(weights))
    if missing or set(weights) - set(expected):
        problems = missing or sorted(set(weights) - set(expected))
        verb = "lacks weights for" if missing else "has weights that do not belong to one model:"
        raise CheckpointError(f"{path} {verb} {', '.join(problems[:5])}")
    for name, tensor in weights.items():
        if tuple(tensor.shape) != expected[name]:
            raise CheckpointError(f"{path}: '{name}' has the shape {tuple(tensor.shape)}, expected is {expected[name]}")
    matcher.load_state_dict(weights)
    return matcher
