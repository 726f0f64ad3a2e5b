"""Weights to begin a run with: of another run, of an exported model, or of a pretrained model of transformers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sremkit.data.subwords import AnyTokenizer, tokenizer_from_dict
from sremkit.errors import UserError, UserNotice
from sremkit.io import first_line, read_json
from sremkit.models import BACKBONES, Matcher
from sremkit.models.hf_folder import find_model_folder, is_model_folder
from sremkit.training.checkpoint import without_prefix
from sremkit.training.run_folder import RunFolder


class PartialWeightsWarning(UserNotice):
    """Only some weights of the named run or folder fit the model."""


@dataclass(frozen=True)
class StartWeights:
    """What a run begins with.

    Args:
        tensors: weights by name; none where the model reads them from `folder` itself.
        vocabulary: of the words that the weights were trained on, or the tokenizer of a pretrained model.
        folder: of a pretrained model of transformers.
        model: name and options of the backbone, of an exported model.
    """

    source: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    vocabulary: AnyTokenizer | None = None
    folder: Path | None = None
    model: dict[str, Any] = field(default_factory=dict)

    def options_for(self, table: dict[str, Any]) -> dict[str, Any]:
        """The recipe's model table; a backbone that reads pretrained folders gets this one, or its configuration."""
        if self.folder is None:
            if table["name"] == self.model.get("name") and BACKBONES[table["name"]].has_tokenizer:
                options = {name: self.model["options"][name] for name in ("config", "processor")}
                return {**{name: value for name, value in table.items() if name != "folder"}, **options}
            return table
        if not BACKBONES[table["name"]].has_tokenizer:
            raise UserError(
                f"{self.source} holds a model of transformers, which '{table['name']}' cannot begin with; "
                "choose model.name=clip, or give a run of the same backbone"
            )
        return {**table, "folder": str(self.folder)}

    def load_into(self, matcher: Matcher) -> None:
        """Load every weight that the model has under the same name and in the same shape."""
        if self.folder is not None:  # the backbone has read them
            return
        own = matcher.state_dict()
        single = not any(name.startswith("members.") for name in self.tensors)
        found = {}
        for name, tensor in own.items():
            # Each of two networks begins with the weights of a single one.
            source = name.split(".", 2)[2] if single and name.startswith("members.") else name
            start = self.tensors.get(source)
            if start is None or start.shape != tensor.shape or start.is_floating_point() != tensor.is_floating_point():
                continue
            if not start.to(tensor.dtype).isfinite().all():
                raise UserError(
                    f"the weight '{source}' of {self.source} holds NaN or infinite values; give another one"
                )
            found[name] = start
        if not found:
            raise UserError(
                f"no weight of {self.source} fits '{matcher.name}' with these sizes; give a run of the same backbone"
            )
        matcher.load_state_dict(found, strict=False)
        missing = [name for name in own if name not in found]
        if missing:
            warnings.warn(
                f"{len(found)} of {len(own)} weights are those of {self.source}; the others have no counterpart of the "
                f"same shape there and begin at random, such as {missing[0]}",
                PartialWeightsWarning,
                stacklevel=2,
            )


def find_weights(source: str) -> StartWeights:
    """The weights of a run's best model, of a folder that `srem export-model` wrote, or of a pretrained model."""
    path = Path(source).expanduser()
    model_folder = find_model_folder(source)
    if is_model_folder(model_folder):
        return StartWeights(source, folder=model_folder)
    if (path / "config.toml").is_file():
        tensors, facts = RunFolder.open(path).best()
        vocabulary = _vocabulary(source, facts.get("vocabulary"))
        return StartWeights(source, without_prefix("model", tensors), vocabulary, model=facts.get("model", {}))
    if (path / "config.json").is_file() and (path / "model.safetensors").is_file():
        file = path / "vocabulary.json"
        try:
            tensors = load_file(path / "model.safetensors")
        except (OSError, SafetensorError) as cause:
            raise UserError(f"{path / 'model.safetensors'} is damaged ({cause}); export the model again") from cause
        vocabulary = _vocabulary(source, read_json(file) if file.is_file() else None)
        return StartWeights(source, tensors, vocabulary, model=read_json(path / "config.json").get("model", {}))
    raise UserError(
        f"{source} is neither a run, nor an exported model, nor a model of transformers; name a folder with one of them"
    )


def _vocabulary(source: str, stored: dict[str, Any] | None) -> AnyTokenizer | None:
    try:
        return None if stored is None else tokenizer_from_dict(stored)
    except (KeyError, TypeError, AttributeError) as cause:
        raise UserError(
            f"the vocabulary of {source} is damaged ({first_line(cause)}); export the model again"
        ) from cause
