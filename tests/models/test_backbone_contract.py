"""The contract of every registered backbone, whatever its formula."""

from __future__ import annotations

import inspect
import io
import json
import pickle
import re
from dataclasses import replace
from typing import Literal, get_type_hints

import pytest
import torch

from small_models import SMALL, make_items, small_matcher, some_loss
from sremkit.models import BACKBONES, WRAPPERS, Encoded, build_matcher, encoding

NAMES = list(BACKBONES)
READS_WORDS = [name for name in NAMES if BACKBONES[name].text_input == "words"]
READS_REGIONS = [name for name in NAMES if BACKBONES[name].image_input != "pixels"]
# The index of a region chooses a normalisation channel in models that are built for a number of regions.
ANY_REGION_ORDER = [
    name for name in READS_REGIONS if "num_regions" not in inspect.signature(BACKBONES[name]).parameters
]

# A constant added to all inputs of a softmax, or of a batch normalisation in training, changes nothing: these
# biases are part of the published models, and their gradient is zero.
WITHOUT_EFFECT = re.compile(
    r"(region_attention|word_attention)\.weight\.bias"
    r"|steps\.\d+\.key\.bias|region_attention\.mean\.bias|filter\.bias"
    r"|mlp_in\.bias|layers\.\d+\.output\.bias|k_proj\.bias"
)


def test_the_backbones_of_the_paper_are_registered() -> None:
    expected = {"scan-t2i", "scan-i2t", "imram", "vsrn", "sgr", "saf", "sgraf", "dual", "vse-infty", "clip", "vit"}
    assert expected <= set(BACKBONES)
    assert all(BACKBONES.describe(name) for name in BACKBONES)


def test_wrappers_are_built_by_name_and_not_listed_as_backbones() -> None:
    member = {"name": "dual", "options": SMALL["dual"]}
    for name in WRAPPERS:
        assert name not in BACKBONES
        assert build_matcher(name, member=member).name == name
    assert build_matcher("twins", member=member).name == "two-networks"  # as checkpoints of version 0.1 call it


def test_the_signature_shows_the_options_that_are_passed_to_the_base_class() -> None:
    shown = inspect.signature(BACKBONES["sgr"]).parameters
    assert {"vocab_size", "sim_dim", "dropout", "num_steps"} <= set(shown)
    assert not any(p.kind is p.VAR_KEYWORD for p in shown.values())
    assert shown["dropout"].default == 0.4
    assert get_type_hints(BACKBONES["scan-i2t"].__init__)["aggregation"] == Literal["logsumexp", "mean"]
    assert inspect.signature(BACKBONES["scan-i2t"]).parameters["attention_scale"].default == 4.0


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_gives_finite_float32_logits_of_all_images_with_all_texts(name: str, training: bool) -> None:
    batch = make_items(dtype=torch.float32).batch(name)
    logits = small_matcher(name, dtype=torch.float32).train(training)(batch)
    assert logits.shape == (5, 5)
    assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()
    assert logits.std() > 1e-4  # and they distinguish pairs


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name: str) -> None:
    matcher = small_matcher(name).train()
    logits, losses = matcher.logits_and_losses(make_items().batch(name))
    (some_loss(logits) + sum(losses.values())).backward()
    largest = {key: -1.0 if p.grad is None else p.grad.abs().max().item() for key, p in matcher.named_parameters()}
    idle = {key for key, size in largest.items() if not size > 1e-12}
    assert idle == {key for key in largest if WITHOUT_EFFECT.search(key)}
    assert -1.0 not in largest.values()  # distributed training wants a gradient for each, if only zero


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_bit_of_logits_gradients_and_running_estimates(name: str, training: bool) -> None:
    items, results = make_items(), []
    for padding in ({}, {"more_words": 5, "more_regions": 1, "garbage": torch.nan}):
        matcher = small_matcher(name).train(training)
        logits, losses = matcher.logits_and_losses(items.batch(name, **padding))
        (some_loss(logits) + sum(losses.values())).backward()
        gradients = {key: p.grad for key, p in matcher.named_parameters()}
        results.append({"logits": logits, **losses, **gradients, **dict(matcher.named_buffers())})
    plain, padded = results
    assert [key for key in plain if not torch.equal(plain[key], padded[key])] == []


@pytest.mark.parametrize("name", NAMES)
def test_absent_regions_and_words_are_encoded_as_zero(name: str) -> None:
    matcher, batch = small_matcher(name).eval(), make_items().batch(name)
    for items in (matcher.encode_images(batch), matcher.encode_texts(batch)):
        if items.local is None:
            continue
        local, mask = items.parts()
        assert not mask.all()
        assert (local[~mask] == 0).all()
        assert (local[mask] != 0).any(dim=1).all()


@pytest.mark.parametrize("name", READS_WORDS)
def test_a_caption_scores_the_same_in_a_batch_with_a_much_longer_one(name: str) -> None:
    items = make_items()
    alone = small_matcher(name).eval()(items.batch(name))
    matcher = small_matcher(name).eval()
    longest = min(200, getattr(matcher, "max_words", 200))
    items.captions[0] = [1, *([5, 9, 12, 7] * 50)[: longest - 2], 2]
    padded = matcher(items.batch(name))
    # Other shapes go through other matrix routines, so the last bits may differ.
    torch.testing.assert_close(padded[:, 1:], alone[:, 1:], rtol=1e-12, atol=1e-12)
    assert torch.isfinite(padded).all()
    assert not torch.allclose(padded[:, 0], alone[:, 0])


@pytest.mark.parametrize("name", READS_REGIONS)
def test_an_image_scores_the_same_in_a_batch_with_one_of_more_regions(name: str) -> None:
    items = make_items()
    alone = small_matcher(name).eval()(items.batch(name))
    items.images[0] = torch.cat([items.images[0], items.images[0][:1] + 1])
    padded = small_matcher(name).eval()(items.batch(name))
    torch.testing.assert_close(padded[1:], alone[1:], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(padded[0], alone[0])


@pytest.mark.parametrize("name", ANY_REGION_ORDER)
def test_a_masked_region_has_no_influence_wherever_it_is(name: str) -> None:
    items = make_items(regions=(5, 5))
    batch = items.batch(name)
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2, 1] = False
    holed = small_matcher(name).eval()(replace(batch, region_mask=mask))
    items.images[2] = items.images[2][[0, 2, 3, 4]]
    without = small_matcher(name).eval()(items.batch(name))
    torch.testing.assert_close(holed, without, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", NAMES)
def test_permuting_the_batch_permutes_the_logits(name: str, training: bool) -> None:
    items, order = make_items(), [3, 0, 4, 2, 1]
    logits = small_matcher(name).train(training)(items.batch(name))
    permuted = small_matcher(name).train(training)(items.permuted(order).batch(name))
    torch.testing.assert_close(permuted, logits[order][:, order], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("limits", [{}, {"image_chunk": 2, "text_chunk": 3}, {"memory_limit": 1}])
@pytest.mark.parametrize("name", NAMES)
def test_score_all_equals_forward_in_evaluation_mode(name: str, limits: dict) -> None:
    matcher, batch = small_matcher(name).eval(), make_items(7).batch(name)
    with torch.no_grad():
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
        expected = matcher(batch)
    matcher.train()
    scores = matcher.score_all(images[:4], texts, **limits)
    torch.testing.assert_close(scores, expected[:4], rtol=1e-12, atol=1e-12)
    assert not scores.requires_grad


@pytest.mark.parametrize("name", NAMES)
def test_encodings_of_several_batches_join_to_those_of_one(name: str) -> None:
    items, matcher = make_items(7), small_matcher(name).eval()
    halves = [items.permuted(rows).batch(name) for rows in ([0, 1, 2], [3, 4, 5, 6])]
    with torch.no_grad():
        images = Encoded.concatenate([matcher.encode_images(half) for half in halves])
        texts = Encoded.concatenate([matcher.encode_texts(half) for half in halves])
        expected = matcher(items.batch(name))
    torch.testing.assert_close(matcher.score_all(images, texts), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_rebuilt_from_its_name_options_and_weights(name: str) -> None:
    items, matcher = make_items(), small_matcher(name).eval()
    expected = matcher(items.batch(name))
    file = io.BytesIO()
    torch.save(matcher.state_dict(), file)
    file.seek(0)
    again = build_matcher(matcher.name, **json.loads(json.dumps(matcher.options))).double()
    again.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(again.eval()(items.batch(name)), expected)
    pickled = pickle.loads(pickle.dumps(matcher))
    assert torch.equal(pickled(items.batch(name)), expected)
    assert (pickled.name, pickled.options) == (matcher.name, matcher.options)


@pytest.mark.parametrize("name", NAMES)
def test_a_chunk_for_each_caption_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    items, results = make_items(), []
    for budget in (encoding.CPU_CHUNK, 1):
        monkeypatch.setattr(encoding, "CPU_CHUNK", budget)
        matcher = small_matcher(name).train()
        logits = matcher(items.batch(name))
        some_loss(logits).backward()
        gradients = {key: p.grad for key, p in matcher.named_parameters()}
        results.append({"logits": logits.detach(), **gradients, **dict(matcher.named_buffers())})
    whole, chunked = results
    torch.testing.assert_close(chunked, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_applies_to_comparisons_of_backbones_that_declare_it(name: str) -> None:
    matcher, batch = (
        small_matcher(name, dtype=torch.float32).eval(),
        make_items(dtype=torch.float32).batch(name),
    )
    images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = matcher.compare(images, texts)
    assert torch.equal(mixed, matcher.compare(images, texts)) is not BACKBONES[name].compares_in_autocast


@pytest.mark.parametrize("name", NAMES)
def test_two_builds_from_one_seed_are_equal(name: str) -> None:
    first, second = (small_matcher(name, seed=3).state_dict() for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)
