"""Two networks: each trains alone, together they score with the mean similarity."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from small_models import SMALL, make_items
from sremkit.data import Batches
from sremkit.evaluation.scoring import score_matrix
from sremkit.models import build_matcher
from sremkit.models.ensemble import logit_of_mean
from sremkit.models.wrappers.two_networks import TwoNetworks
from training import tiny

DUAL = {"name": "dual", "options": {"image_dim": 12, "text_dim": 8, "hidden_size": 16, "embed_size": 8}}


@pytest.fixture
def model() -> TwoNetworks:
    torch.manual_seed(0)
    return build_matcher("two-networks", member=DUAL).eval()


def test_the_mean_of_similarities_by_hand() -> None:
    # σ(0) = 1/2 and σ(ln 3) = 3/4: the mean is 5/8, whose logit is ln(5/3).
    assert logit_of_mean(torch.tensor(0.0), torch.tensor(3.0).log()).item() == pytest.approx(np.log(5 / 3))


def test_the_mean_ranks_where_float32_similarities_would_tie() -> None:
    a = torch.tensor([40.0, 41.0, -300.0, -301.0])
    assert a.sigmoid()[0] == a.sigmoid()[1]
    assert (logit_of_mean(a, a) - a).abs().max() < 1e-4
    assert logit_of_mean(a[:1], a[1:2]) < logit_of_mean(a[1:2], a[1:2])


def test_evaluation_averages_similarities_and_training_gets_the_logits_of_each_network(
    model: TwoNetworks,
) -> None:
    pairs = tiny.tiny_pairs(num_images=6)
    batch = Batches(pairs, batch_size=12).take(np.arange(0, 12, 2))
    each, losses = model.logits_and_losses(batch)
    assert losses == {}
    torch.testing.assert_close(each, torch.stack([network(batch) for network in model.pair()]))
    assert not torch.allclose(each[0], each[1])  # different initial weights
    mean = each.double().sigmoid().mean(0)
    torch.testing.assert_close(score_matrix(model, pairs)[:, ::2].double().sigmoid(), mean, rtol=1e-5, atol=1e-7)


def test_it_can_be_rebuilt_from_its_name_and_options(model: TwoNetworks) -> None:
    again = build_matcher(model.name, **model.options)
    again.load_state_dict(model.state_dict())
    batch = Batches(tiny.tiny_pairs(), batch_size=4).take(np.arange(4))
    torch.testing.assert_close(again.eval()(batch), model(batch))


@pytest.mark.parametrize("backbone", ["scan-t2i", "sgr", "vsrn"])
def test_local_vectors_and_extra_losses_come_through(backbone: str) -> None:
    torch.manual_seed(0)
    member = {"name": backbone, "options": SMALL[backbone]}
    model = build_matcher("two-networks", member=member).double().eval()
    batch = make_items(5).batch(backbone)
    logits, losses = model.logits_and_losses(batch)
    expected = logit_of_mean(*(network(batch) for network in model.networks()))
    torch.testing.assert_close(model(batch), expected, rtol=1e-9, atol=1e-9)
    assert logits.shape == (2, len(batch), len(batch))
    for name, loss in losses.items():
        torch.testing.assert_close(loss, sum(n.extra_losses(batch)[name] for n in model.networks()))
    assert bool(losses) == (backbone == "vsrn")
