"""The yardstick of the benchmark computes the same thing, or its times would mean nothing."""

from __future__ import annotations

import pytest
import torch

from small_models import make_items, small_matcher, some_loss
from sremkit.bench.backbones import make_batch, measure
from sremkit.bench.caption_loops import LOOPS
from sremkit.models import BACKBONES


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", sorted(LOOPS))
def test_a_loop_over_captions_gives_the_backbones_logits_gradients_and_estimates(
    name: str, training: bool
) -> None:
    batch, results = make_items(regions=(6, 6)).batch(), []
    for loop in (False, True):
        matcher = small_matcher(name).train(training)
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
        logits = LOOPS[name](matcher, images, texts) if loop else matcher.compare(images, texts)
        some_loss(logits).backward()
        gradients = {key: p.grad for key, p in matcher.named_parameters()}
        results.append({"logits": logits.detach(), **gradients, **dict(matcher.named_buffers())})
    ours, looped = results
    torch.testing.assert_close(ours, looped, rtol=1e-9, atol=1e-12)


def test_a_measurement_gives_times_and_memory_of_steps_that_really_ran() -> None:
    found = measure("dual", by="ours", batch_size=4, device="cpu", patience=0.0)
    assert set(found) == {"step", "comparison", "megabytes"}
    assert found["step"] > found["comparison"] > 0
    assert found["megabytes"] >= 0


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_every_backbone_has_a_batch_to_be_measured_on(name: str) -> None:
    batch = make_batch(name, 3)
    assert len(batch) == 3
    assert batch.images.shape == ((3, 3, 224, 224) if name == "clip" else (3, 36, 2048))
    assert batch.word_mask.sum(dim=1).min() >= 8
