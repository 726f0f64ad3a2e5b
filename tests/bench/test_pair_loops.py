"""The loop over pairs computes the same thing, or the ratio to it would mean nothing."""

from __future__ import annotations

import pytest
import torch

from small_models import make_items, small_matcher, some_loss
from sremkit.bench import backbones
from sremkit.bench.backbones import compare, main
from sremkit.bench.caption_loops import LOOPS
from sremkit.bench.pair_loops import PAIR_LOOPS


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", sorted(PAIR_LOOPS))
def test_a_loop_over_pairs_gives_the_backbones_logits_gradients_and_estimates(
    name: str, training: bool
) -> None:
    batch, results = make_items(regions=(6, 6)).batch(), []
    for by in ("ours", "pair loop"):
        matcher = small_matcher(name).train(training)
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
        logits = compare(matcher, images, texts, by=by)
        some_loss(logits).backward()
        gradients = {key: p.grad for key, p in matcher.named_parameters()}
        results.append({"logits": logits.detach(), **gradients, **dict(matcher.named_buffers())})
    ours, looped = results
    torch.testing.assert_close(ours, looped, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("direction", ["image", "full"])
def test_the_loop_over_pairs_asks_in_both_directions(direction: str) -> None:
    batch, matcher = make_items(regions=(6, 6)).batch(), small_matcher("imram", direction=direction)
    images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    looped = compare(matcher, images, texts, by="pair loop")
    torch.testing.assert_close(looped, matcher.compare(images, texts), rtol=1e-9, atol=1e-12)


def test_whatever_is_looped_over_captions_is_looped_over_pairs() -> None:
    assert set(PAIR_LOOPS) == set(LOOPS)


def test_a_pair_loop_is_run_once_and_other_ways_are_repeated(monkeypatch) -> None:
    runs = []
    monkeypatch.setattr(backbones, "gradients_of", lambda logits, extra=0.0: runs.append(logits.shape))
    backbones.measure("scan-t2i", by="pair loop", batch_size=2, device="cpu", patience=60.0)
    assert len(runs) == 2  # one step, one comparison
    runs.clear()
    backbones.measure("scan-t2i", by="caption loop", batch_size=2, device="cpu", patience=0.0)
    assert len(runs) == 4


def test_a_measurement_has_captions_up_to_the_words_asked_for(monkeypatch) -> None:
    made = []
    make_batch = backbones.make_batch

    def watched(*args, **options):
        made.append(make_batch(*args, **options))
        return made[-1]

    monkeypatch.setattr(backbones, "make_batch", watched)
    monkeypatch.setattr(backbones, "in_own_process", lambda work, *args, **options: work(*args, **options))
    main(["scan-t2i", "--no-pair-loop", "--batch-size", "9", "--patience", "0", "--most-words", "9"])
    lengths = made[0].word_mask.sum(dim=1)
    assert (lengths.min(), lengths.max()) == (8, 9)


def test_the_table_names_each_way_and_how_many_times_ours_it_takes(monkeypatch, capsys) -> None:
    seconds = {"ours": 1.0, "caption loop": 1.5, "pair loop": 9.0}
    monkeypatch.setattr(
        backbones,
        "_measured_apart",
        lambda name, *, by, arguments: {"step": seconds[by], "comparison": 2 * seconds[by], "megabytes": 7.0},
    )
    main(["saf", "dual"])
    rows = [line.split() for line in capsys.readouterr().out.strip().split("\n")[2:]]
    assert rows == [
        ["saf", "ours", "1.000s", "2.000s", "7MB"],
        ["saf", "caption", "loop", "1.500s", "1.5x", "3.000s", "1.5x", "7MB"],
        ["saf", "pair", "loop", "9.000s", "9.0x", "18.000s", "9.0x", "7MB"],
        ["dual", "ours", "1.000s", "2.000s", "7MB"],
    ]
