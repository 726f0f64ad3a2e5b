"""A backbone scored by a small network: what the network computes, how it starts, and that it can be rebuilt."""

from __future__ import annotations

import pytest
import torch

from small_models import SMALL, make_items, small_matcher, some_loss
from sremkit.models import build_matcher
from sremkit.models.wrappers.meta_scored import MetaNetwork, MetaScored

NAMES = ["dual", "saf", "scan-t2i", "sgr", "vsrn"]


def meta_scored(name: str, seed: int = 0, **options: int) -> MetaScored:
    torch.manual_seed(seed)
    matcher = build_matcher("meta-scored", member={"name": name, "options": SMALL[name]}, **options)
    assert isinstance(matcher, MetaScored)
    return matcher.double()


def test_the_network_by_hand() -> None:
    # Hidden: relu(2 - 1) = 1 and relu(-4 + 1) = 0; output: 3 * 1 + 5 * 0 + 0.5.
    network = MetaNetwork(1, 2)
    with torch.no_grad():
        network.hidden.weight.copy_(torch.tensor([[1.0], [-2.0]]))
        network.hidden.bias.copy_(torch.tensor([-1.0, 1.0]))
        network.output.weight.copy_(torch.tensor([[3.0, 5.0]]))
        network.output.bias.fill_(0.5)
    assert network(torch.full((1, 1, 1), 2.0)).item() == pytest.approx(3.5)


@pytest.mark.parametrize("name", NAMES)
def test_it_scores_the_backbone_s_similarity_vectors(name: str) -> None:
    matcher, batch = meta_scored(name).eval(), make_items().batch(name)
    images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    vectors = matcher.backbone.similarity_vectors(images, texts)
    width = SMALL[name].get("sim_dim", 1)
    assert vectors.shape == (5, 5, width)
    assert matcher.backbone.similarity_width == width
    torch.testing.assert_close(matcher(batch), matcher.meta_network(vectors), rtol=0, atol=0)
    assert matcher(batch).shape == (5, 5)


@pytest.mark.parametrize("name", ["saf", "sgr"])
def test_the_last_linear_layer_of_the_similarity_vectors_is_the_backbone_s_logit(name: str) -> None:
    matcher, batch = small_matcher(name).eval(), make_items().batch(name)
    vectors = matcher.similarity_vectors(matcher.encode_images(batch), matcher.encode_texts(batch))
    torch.testing.assert_close(matcher.score(vectors).squeeze(-1), matcher(batch), rtol=0, atol=0)


def test_on_logits_it_starts_as_a_rising_line_of_moderate_slope() -> None:
    x = torch.linspace(-12, 12, 200, dtype=torch.float64)
    for seed in range(20):
        torch.manual_seed(seed)
        y = MetaNetwork(1, 64).double()(x[None, :, None])[0].detach()
        assert (y.diff() > 0).all()
        assert 6 < y[-1] - y[0] < 40
    torch.manual_seed(0)
    wide = MetaNetwork(2, 64)
    assert not (wide.output.weight * wide.hidden.weight.sum(dim=1) >= 0).all()  # else the signs prove nothing


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_rebuilt_from_its_name_and_options_also_as_one_of_two_networks(name: str) -> None:
    batch = make_items().batch(name)
    member = {"name": "meta-scored", "options": {"member": {"name": name, "options": SMALL[name]}}}
    for matcher in (meta_scored(name, hidden_size=9), build_matcher("two-networks", member=member).double()):
        again = build_matcher(matcher.name, **matcher.options).double()
        again.load_state_dict(matcher.state_dict())
        torch.testing.assert_close(again.eval()(batch), matcher.eval()(batch), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_backbone_and_network_and_extra_losses_come_through(name: str) -> None:
    matcher = meta_scored(name).train()
    logits, losses = matcher.logits_and_losses(make_items().batch(name))
    (some_loss(logits) + sum(losses.values())).backward()
    assert bool(losses) == (name == "vsrn")
    unused = {key for key, p in matcher.named_parameters() if p.grad is None}
    has_vectors = matcher.backbone.similarity_width > 1
    assert unused == ({"backbone.score.weight", "backbone.score.bias"} if has_vectors else set())


def test_all_images_with_all_texts_in_blocks_is_the_same() -> None:
    matcher, batch = meta_scored("sgr").eval(), make_items(7).batch("sgr")
    with torch.no_grad():
        images, texts, expected = matcher.encode_images(batch), matcher.encode_texts(batch), matcher(batch)
    scores = matcher.score_all(images, texts, image_chunk=2, text_chunk=3)
    torch.testing.assert_close(scores, expected, rtol=1e-12, atol=1e-12)
    assert matcher.floats_per_pair(images, texts) > matcher.backbone.floats_per_pair(images, texts)


def test_a_width_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden_size must be at least 1, got 0"):
        meta_scored("dual", hidden_size=0)
