"""Tokenizers of published models, against transformers' own classes where these can be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretrained_models import COLORS, PIECES, save_model, transformers, write_clip_vocabulary, write_sentencepiece
from sremkit.data.subwords import SubwordTokenizer, tokenizer_from_dict
from sremkit.errors import DataError, MissingExtraError

TEXTS = [
    "a red square",
    "A  RED\tsquare!",
    "red.",
    "a-b",
    "...",
    "",
    "a left red green blue white square left",
    "zebra",
]


def test_the_published_files_of_clip_are_read_as_transformers_reads_them(tmp_path: Path) -> None:
    write_clip_vocabulary(save_model(tmp_path, "clip"))
    own = SubwordTokenizer.from_folder(tmp_path, max_length=8, padded=False)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == "CLIPTokenizer"
    for text in TEXTS:
        assert own.encode(text) == theirs(text, truncation=True, max_length=8)["input_ids"]
    assert own.encode("a red") == [55, 26, 53, 56]  # <|startoftext|> a</w> red</w> <|endoftext|>
    assert own.pad_id == 56


def siglip(folder: Path) -> SubwordTokenizer:
    write_sentencepiece(save_model(folder, "siglip"))
    return SubwordTokenizer.from_folder(folder, max_length=8, padded=True)


def test_the_sentencepiece_model_of_siglip_is_read_without_that_package(tmp_path: Path) -> None:
    own = siglip(tmp_path)
    end, unknown, a, square, red = 1, 2, 3, 4, PIECES.index("\u2581red")
    assert own.encode("a red square") == [a, red, square, end, end, end, end, end]
    # Lower case, without punctuation, single spaces.
    assert own.encode(" A  RED,\tsquare!") == own.encode("a red square")
    assert own.encode("a zebra")[:4] == [a, PIECES.index("\u2581"), unknown, end]
    assert own.encode(" ".join(COLORS * 2)) == [*(PIECES.index(f"\u2581{c}") for c in COLORS), red, end]  # cut
    assert tokenizer_from_dict(own.to_dict()).encode("a red square") == own.encode("a red square")


def test_the_sentencepiece_model_of_siglip_gives_the_tokens_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece", reason="transformers needs it for this tokenizer")
    own, theirs = siglip(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert own.encode(text) == theirs(text, padding="max_length", truncation=True, max_length=8)["input_ids"]


def test_the_json_file_of_siglip_is_read_before_the_sentencepiece_model(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(siglip(tmp_path).content)
    (tmp_path / "spiece.model").unlink()
    again = SubwordTokenizer.from_folder(tmp_path, max_length=8, padded=True)
    assert again.encode("A red") == [3, PIECES.index("\u2581red"), *[1] * 6]
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"neither tokenizer\.json nor spiece\.model is there"):
        SubwordTokenizer.from_folder(tmp_path, max_length=8, padded=True)


def test_a_missing_package_for_the_sentencepiece_model_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sremkit.data.subwords.is_installed", lambda package: package != "protobuf")
    with pytest.raises(MissingExtraError, match=r"'protobuf' .*sremkit\[hf\]"):
        siglip(tmp_path)
