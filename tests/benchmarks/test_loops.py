"""The reference loops compute what the backbones compute, and the benchmark measures both."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks import step_time
from benchmarks.loops import caption_loop, has_loop, pair_loop
from benchmarks.steps import make_batch
from small_models import make_items, small_matcher, some_loss
from sremkit.models import BACKBONES, Matcher

LOOPS = {"caption": caption_loop, "pair": pair_loop}
LOOPED = [name for name in BACKBONES if has_loop(name)]


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("name", LOOPED)
def test_a_loop_gives_the_backbones_logits_gradients_and_estimates(name: str, loop: Any, training: bool) -> None:
    batch, results = make_items(regions=(6, 6)).batch(), []
    for compare in (Matcher.compare, loop):
        matcher = small_matcher(name).train(training)
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
        logits = matcher.compare(images, texts) if compare is Matcher.compare else loop(matcher, images, texts)
        some_loss(logits).backward()
        gradients = {key: p.grad for key, p in matcher.named_parameters()}
        results.append({"logits": logits.detach(), **gradients, **dict(matcher.named_buffers())})
    ours, looped = results
    torch.testing.assert_close(ours, looped, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("direction", ["image", "full"])
def test_the_loops_know_the_directions_of_imram(direction: str, loop: Any) -> None:
    batch, matcher = make_items(regions=(6, 6)).batch(), small_matcher("imram", direction=direction)
    images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    looped = loop(matcher, images, texts)
    torch.testing.assert_close(looped, matcher.compare(images, texts), rtol=1e-9, atol=1e-12)


def test_backbones_that_compare_words_with_regions_have_loops() -> None:
    assert {"scan-t2i", "scan-i2t", "imram", "sgr", "saf"} <= set(LOOPED)
    assert "dual" not in LOOPED


def test_a_measurement_gives_times_and_memory_of_steps_that_really_ran() -> None:
    found = step_time.measure("dual", by="ours", batch_size=4, device="cpu", min_run_time=0.0)
    assert set(found) == {"step", "comparison", "megabytes"}
    assert found["step"] > found["comparison"] > 0
    assert found["megabytes"] >= 0


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_every_backbone_has_a_batch_to_be_measured_on(name: str) -> None:
    batch = make_batch(name, 3)
    assert len(batch) == 3
    assert batch.images.shape == ((3, 3, 224, 224) if BACKBONES[name].image_input == "pixels" else (3, 36, 2048))
    assert batch.word_mask.sum(dim=1).min() >= 8


def test_a_pair_loop_is_run_once_and_the_others_are_repeated(monkeypatch) -> None:
    runs = []
    monkeypatch.setattr(step_time, "contrastive_backward", lambda logits, extra=0.0: runs.append(logits.shape))
    step_time.measure("scan-t2i", by="pair loop", batch_size=2, device="cpu", min_run_time=60.0)
    assert len(runs) == 2  # one step, one comparison
    runs.clear()
    step_time.measure("scan-t2i", by="caption loop", batch_size=2, device="cpu", min_run_time=0.0)
    assert len(runs) == 4


def test_a_measurement_has_captions_up_to_the_words_asked_for(monkeypatch) -> None:
    made = []

    def watched(*args, **options):
        made.append(make_batch(*args, **options))
        return made[-1]

    monkeypatch.setattr(step_time, "make_batch", watched)
    monkeypatch.setattr(step_time, "run_in_subprocess", lambda work, *args, **options: work(*args, **options))
    options = ["--no-pair-loop", "--batch-size", "9", "--min-run-time", "0", "--max-words", "9"]
    assert step_time.main(["scan-t2i", *options]) == 0
    lengths = made[0].word_mask.sum(dim=1)
    assert (lengths.min(), lengths.max()) == (8, 9)


def test_the_table_states_how_many_times_as_long_a_loop_takes(monkeypatch, capsys) -> None:
    seconds = {"ours": 1.0, "caption loop": 1.5, "pair loop": 9.0}
    monkeypatch.setattr(
        step_time,
        "measure_in_subprocess",
        lambda name, *, by, args: {"step": seconds[by], "comparison": 2 * seconds[by], "megabytes": 7.0},
    )
    assert step_time.main(["saf", "dual"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.strip().split("\n")[2:]]
    assert rows == [
        ["saf", "ours", "1.000s", "2.000s", "7MB"],
        ["saf", "caption", "loop", "1.500s", "1.5x", "3.000s", "1.5x", "7MB"],
        ["saf", "pair", "loop", "9.000s", "9.0x", "18.000s", "9.0x", "7MB"],
        ["dual", "ours", "1.000s", "2.000s", "7MB"],
    ]
