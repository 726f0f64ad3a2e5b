"""Re-matching: the search for the best images, and SREM-plus with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sremkit.data import Batches, make_noise
from sremkit.methods import build_method
from sremkit.methods.srem_plus import best_images
from sremkit.models import Encoded, Matcher
from sremkit.training.diagnostics import StoppedError
from sremkit.training.run_folder import RunFolder
from training import tiny
from training.test_resume import StopAfter, assert_same


class Products(Matcher):
    """Compares pooled vectors by their products."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def compare(self, images: Encoded, texts: Encoded) -> torch.Tensor:
        return images.whole() @ texts.whole().T


@pytest.mark.parametrize("text_chunk", [1, 7, 100])
@pytest.mark.parametrize("top_k", [1, 3, 40])
def test_best_images_are_those_of_the_whole_matrix(top_k: int, text_chunk: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(11, 4, generator=generator), torch.randn(30, 4, generator=generator)
    found = best_images(Products(), Encoded(pooled=images), Encoded(pooled=texts), top_k=top_k, text_chunk=text_chunk)
    scores = images @ texts.T
    for text in range(30):
        image = max(range(11), key=lambda i, text=text: float(scores[i, text]))
        better = sum(float(scores[image, other]) > float(scores[image, text]) for other in range(30))
        assert int(found.image[text]) == image
        assert bool(found.is_mutual[text]) == (better < top_k)


def test_a_rematched_text_comes_with_its_new_image_and_weight_and_is_not_remembered() -> None:
    trainer = tiny.tiny_trainer(method="srem-plus", method_options={"rematch_top_k": 200, "rematch_weight": 0.25})
    method = trainer.method
    method.start(trainer.context())
    given = torch.from_numpy(trainer.batches.pairs.image_of_text.copy())
    method.clean_prob[:] = 1.0
    method.clean_prob[5] = method.clean_prob[9] = 0.1
    method.begin_epoch(0, warmup=True)
    assert not method.rematched.any()  # never in the warm-up
    method.begin_epoch(2, warmup=False)
    moved = method.rematched.nonzero().flatten().tolist()
    assert set(moved) <= {5, 9}
    assert moved, "with every text among an image's best ones, only chance could leave both where they are"
    now = torch.from_numpy(trainer.batches.pairs.image_of_text)
    assert (now != given).nonzero().flatten().tolist() == moved
    batch = trainer.batches.take(np.array([moved[0], 20, 40]))
    assert int(batch.image_id[0]) == int(now[moved[0]])
    loss = method.loss(trainer.step.forward, batch, warmup=False)
    assert loss.report.weight.tolist() == pytest.approx([0.25, 1, 1])
    assert loss.report.clean.all()
    assert method.memory[moved[0]].isnan()
    assert not method.memory[20].isnan()


def test_in_turns_a_text_keeps_what_it_found_until_it_looks_again() -> None:
    trainer = tiny.tiny_trainer(method="srem-plus", method_options={"rematch_top_k": 400, "rematch_every": 2})
    method = trainer.method
    method.start(trainer.context())
    given = torch.from_numpy(trainer.batches.pairs.image_of_text.copy())
    method.clean_prob[:] = 0.1  # every text is re-matched
    texts_of = []
    encode = method.pairing.encode
    method.pairing = method.pairing._replace(encode=lambda texts: texts_of.append(texts.tolist()) or encode(texts))
    method.begin_epoch(2, warmup=False)
    first = method.image_of_text.clone()
    assert set(texts_of[0]) == set(range(0, len(given), 2))
    assert torch.equal(first[1::2], given[1::2])
    assert (first[::2] != given[::2]).any()
    method.clean_prob[0] = 1.0  # clean again, with the image as given
    method.begin_epoch(3, warmup=False)
    second = method.image_of_text
    assert set(texts_of[1]) == set(range(1, len(given), 2))
    assert int(second[0]) == int(given[0])
    assert torch.equal(second[2::2], first[2::2])
    assert (second[1::2] != given[1::2]).any()
    with pytest.raises(ValueError, match="rematch_every must be at least 1"):
        build_method("srem-plus", rematch_every=0)


def test_a_stopped_run_goes_on_with_its_rematched_texts(tmp_path: Path) -> None:
    chosen = {"rematch_top_k": 5, "rematch_every": 2, "min_separation": 0.0}
    options = {"method": "srem-plus", "method_options": chosen, "ema_decay": 0.9, "epochs": 3}
    options |= {"pairs": tiny.tiny_pairs(num_images=100)}  # 13 batches an epoch
    whole = RunFolder.create(tmp_path / "whole", config="")
    trainer = tiny.tiny_trainer(whole, **options)
    trainer.run()
    assert trainer.method.rematched.any(), "else equality would say nothing about them"
    stopped = RunFolder.create(tmp_path / "stopped", config="")
    with pytest.raises(StoppedError):
        tiny.tiny_trainer(stopped, **options, reporter=StopAfter(50)).run()
    tiny.tiny_trainer(stopped, **options).run()
    assert_same(whole, stopped)


def test_most_rematched_texts_find_their_true_image_on_an_easy_task() -> None:
    clean = tiny.tiny_pairs(num_images=300)
    noise = make_noise(clean.image_of_text, rate=0.3, seed=1)
    trainer = tiny.tiny_trainer(
        method="srem-plus", pairs=clean, epochs=12, decay_after=12, learning_rate=1e-2,
        method_options={"rematch_top_k": 1},
    )  # fmt: skip
    trainer.run()
    rematched = trainer.method.rematched.numpy()
    assert rematched.sum() > 50
    assert noise.is_noisy[rematched].mean() > 0.8
    right = trainer.method.image_of_text.numpy()[rematched] == clean.image_of_text[rematched]
    assert right.mean() > 10 / 300  # guessing finds one in 300


def test_batches_with_other_images_leave_the_first_ones_alone() -> None:
    pairs = tiny.tiny_pairs()
    batches = Batches(pairs, batch_size=8)
    other = batches.paired_as(np.roll(pairs.image_of_text, 2))
    rows = np.arange(4)
    assert other.take(rows).image_id.tolist() == np.roll(pairs.image_of_text, 2)[:4].tolist()
    assert batches.take(rows).image_id.tolist() == pairs.image_of_text[:4].tolist()
    assert torch.equal(other.take(rows).sentences, batches.take(rows).sentences)
    assert build_method("srem-plus").rematch_top_k == 0
