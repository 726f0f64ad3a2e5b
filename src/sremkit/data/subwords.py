"""The tokenizer of a pretrained model, as one JSON text, so that a checkpoint does not need the model's folder."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sremkit.data.vocabulary import Vocabulary
from sremkit.errors import DataError, MissingExtraError
from sremkit.extras import is_installed, require
from sremkit.io import first_line, read_json

KIND = "subwords"
CONFIG, SIGLIP = "tokenizer_config.json", "SiglipTokenizer"


class SubwordTokenizer:
    """Token ids of a text, truncated to what the model reads.

    Args:
        content: the tokenizer in the JSON format of the package `tokenizers`.
        max_length: tokens that the model reads; longer texts are cut, and keep their end token.
        pad_id: the token of absent words.
        padded: fill every text up to `max_length` with that token, as SigLIP was trained.
    """

    def __init__(self, content: str, *, max_length: int, pad_id: int = 0, padded: bool = False) -> None:
        self.content, self.max_length, self.pad_id, self.padded = content, max_length, pad_id, padded

    @classmethod
    def from_folder(cls, folder: Path, *, max_length: int, padded: bool) -> SubwordTokenizer:
        """The tokenizer that `save_pretrained` wrote, or the older files of published models."""
        try:
            content, pad_id = _read_tokenizer(folder)
        except MissingExtraError:
            raise
        except Exception as cause:  # transformers raises almost any exception on damaged files
            raise DataError(
                f"{folder} holds no tokenizer that can be read ({first_line(cause)}); copy the model again"
            ) from cause
        return cls(content, max_length=max_length, pad_id=pad_id, padded=padded)

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizers = require("tokenizers", extra="hf", purpose="read texts for a pretrained model")
        tokenizer = tokenizers.Tokenizer.from_str(self.content)
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.max_length)
        return tokenizer

    def __getstate__(self) -> dict[str, Any]:  # without what is made from the content on demand
        return {key: value for key, value in self.__dict__.items() if key != "_tokenizer"}

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        ids = list(self._tokenizer.encode(text).ids)
        return ids + [self.pad_id] * (self.max_length - len(ids)) if self.padded else ids

    def save(self, folder: Path) -> None:
        """Write it into a folder as transformers reads it."""
        transformers = require("transformers", extra="hf", purpose="write a tokenizer")
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=require("tokenizers", extra="hf", purpose="write a tokenizer").Tokenizer.from_str(
                self.content
            ),
            model_max_length=self.max_length,
            pad_token=self._tokenizer.id_to_token(self.pad_id),
        )
        tokenizer.save_pretrained(folder)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": KIND, **{name: getattr(self, name) for name in ("content", "max_length", "pad_id", "padded")}}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> SubwordTokenizer:
        return cls(**{name: stored[name] for name in ("content", "max_length", "pad_id", "padded")})


def _read_tokenizer(folder: Path) -> tuple[str, int]:
    """The tokenizer of a folder in the JSON format of the package tokenizers, and the id of its padding."""
    transformers = require("transformers", extra="hf", purpose="read the tokenizer of a pretrained model")
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    if config.get("tokenizer_class") != SIGLIP:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not getattr(tokenizer, "is_fast", False):
            raise ValueError("it cannot be converted to the format of the package tokenizers; save a tokenizer.json")
        return tokenizer.backend_tokenizer.to_str(), tokenizer.pad_token_id or 0
    # The class of transformers needs the package sentencepiece, and has no JSON format.
    tokenizers = require("tokenizers", extra="hf", purpose="read the tokenizer of a pretrained model")
    if (folder / "tokenizer.json").is_file():
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        tokenizer = _from_sentencepiece(folder / "spiece.model", lower_case=config.get("do_lower_case", True))
    pad = config.get("pad_token", "</s>")
    return tokenizer.to_str(), tokenizer.token_to_id(pad["content"] if isinstance(pad, dict) else pad) or 0


def _from_sentencepiece(file: Path, *, lower_case: bool) -> Any:
    """SigLIP's tokenizer: lower case, no punctuation, single spaces, then the vocabulary of a sentencepiece model."""
    tokenizers = require("tokenizers", extra="hf", purpose="read the tokenizer of SigLIP")
    if not is_installed("protobuf"):
        raise MissingExtraError(
            "the package 'protobuf' is needed to read SigLIP's tokenizer; install it with: pip install 'sremkit[hf]'"
        )
    converters = require("transformers.convert_slow_tokenizer", extra="hf", purpose="read the tokenizer of SigLIP")
    if not file.is_file():
        raise FileNotFoundError(f"neither tokenizer.json nor {file.name} is there")
    tokenizer = converters.SpmConverter(SimpleNamespace(vocab_file=str(file))).converted()
    normalizers = tokenizers.normalizers
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Lowercase()] if lower_case else []),
            normalizers.Replace(tokenizers.Regex(f"[{re.escape(string.punctuation)}]"), ""),
            normalizers.Replace(tokenizers.Regex(r"\s+"), " "),
            normalizers.Strip(),
            tokenizer.normalizer,
        ]
    )
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", tokenizer.token_to_id("</s>"))]
    )
    return tokenizer


AnyTokenizer = Vocabulary | SubwordTokenizer


def tokenizer_from_dict(stored: Mapping[str, Any]) -> AnyTokenizer:
    """The tokenizer that a checkpoint holds; `DataError` if it is none."""
    if not isinstance(stored, Mapping):
        raise DataError(f"the vocabulary of the model is damaged: it is {stored!r:.40}; export or copy the model again")
    return SubwordTokenizer.from_dict(stored) if stored.get("kind") == KIND else Vocabulary.from_dict(stored)
