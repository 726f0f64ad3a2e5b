"""Pairs set aside as trusted: training pairs, right, whole images, and neither trained on nor validated on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sremkit.config.recipes import load_recipe
from sremkit.data import Pairs, make_noise, save_noise
from sremkit.data.generated.scenes import make_scenes
from sremkit.errors import UserError
from sremkit.experiment import Prepared, make_trainer, prepare
from sremkit.training.reporters import ReporterList

NUM_TRAIN, NUM_VAL, NUM_TRUSTED = 24, 10, 6
SMALL = [
    f"data.train_options.num_scenes={NUM_TRAIN}", f"data.options.num_scenes={NUM_VAL}",
    f"data.trusted_images={NUM_TRUSTED}", "noise.rate=0.6", "training.batch_size=8",
    "model.embed_size=8", "model.word_dim=8", "training.device=cpu",
]  # fmt: skip


def prepared(*overrides: str) -> Prepared:
    return prepare(load_recipe("scenes-mscn", [*SMALL, *overrides]))


def image_of_pair(pairs: Pairs) -> dict[str, str]:
    """The image that each pair is given with, by their names."""
    return {pairs.pair_ids[k]: pairs.image_ids[pairs.image_of_text[k]] for k in range(len(pairs))}


def set_aside(*overrides: str) -> set[str]:
    trusted = prepared(*overrides).trusted
    assert trusted is not None
    return set(trusted.pair_ids)


@pytest.mark.parametrize("protocol", ["caption", "image"])
def test_trusted_pairs_are_right_training_pairs_that_are_not_trained_on(protocol: str) -> None:
    ready = prepared(f"noise.protocol={protocol}")
    assert ready.trusted is not None
    truth = make_scenes(NUM_TRAIN, split="train")  # generated anew, so untouched by any noise
    right, trusted, trained = (image_of_pair(pairs) for pairs in (truth, ready.trusted, ready.train))
    assert trusted.items() <= right.items()  # of the training split, and each with its own image
    assert trusted.keys().isdisjoint(trained)
    assert trusted.keys() | trained.keys() == right.keys()  # no pair is lost
    assert set(ready.trusted.texts).isdisjoint(ready.train.texts)
    # All captions of six images: nobody is trained on a right pair of one of them.
    assert len(set(trusted.values())) == NUM_TRUSTED
    assert {pair for pair, image in right.items() if image in set(trusted.values())} == trusted.keys()
    assert set(trusted.values()).isdisjoint(image for pair, image in trained.items() if right[pair] == image)
    # The noise had been at some of them, so that they are right is not for want of noise.
    row = {name: k for k, name in enumerate(truth.pair_ids)}
    assert any(ready.noise.is_noisy[row[name]] for name in trusted)


def test_what_is_known_about_the_pairs_trained_on_is_about_them() -> None:
    ready = prepared()
    right, trained = image_of_pair(make_scenes(NUM_TRAIN, split="train")), image_of_pair(ready.train)
    assert [ready.train.image_ids[k] for k in ready.true_image] == [right[name] for name in trained]
    wrong = [right[name] != image for name, image in trained.items()]
    assert ready.is_noisy.tolist() == wrong
    assert 0.3 < np.mean(wrong) < 0.9


@pytest.mark.parametrize("protocol", ["caption", "image"])
def test_the_noise_is_not_set_aside_with_them(protocol: str) -> None:
    """Scenes have one caption each. Drawn like the noise, the trusted images would be those that it hit first."""
    shares = []
    for seed in range(8):
        ready = prepared(f"noise.protocol={protocol}", f"noise.seed={seed}", "data.train_options.num_scenes=60",
                         "data.trusted_images=20")  # fmt: skip
        shares.append(ready.is_noisy.mean())
    # Of 36 wrong pairs 24 are expected among the 40 that are left: 0.6, with a deviation of 0.04 a seed and 0.02 in
    # the mean. If all that is set aside were wrong, 16 would be left: 0.4.
    assert np.mean(shares) == pytest.approx(0.6, abs=0.08)


def test_no_validation_pair_is_trusted() -> None:
    ready = prepared()
    assert ready.trusted is not None
    assert ready.trusted.split == "train"
    assert len(ready.val) == len(make_scenes(NUM_VAL, split="val"))  # none is taken from them
    assert set(ready.trusted.pair_ids).isdisjoint(ready.val.pair_ids)
    assert set(image_of_pair(ready.trusted).values()).isdisjoint(ready.val.image_ids)


def test_the_trainer_gets_the_trusted_pairs_as_such_and_never_in_a_batch() -> None:
    ready = prepared()
    assert ready.trusted is not None
    trainer = make_trainer(ready, ReporterList())
    names = trainer.batches.pairs.pair_ids
    seen = {names[k] for batch in trainer.batches.every_pair(0) for k in batch.pair_id.tolist()}
    assert seen == set(image_of_pair(ready.train))
    assert trainer.trusted is not None
    assert image_of_pair(trainer.trusted.pairs) == image_of_pair(ready.trusted)
    assert seen.isdisjoint(trainer.trusted.pairs.pair_ids)


def test_the_noises_seed_chooses_them_and_the_trainings_does_not(tmp_path: Path) -> None:
    usual = set_aside()
    assert set_aside("training.seed=1") == usual
    assert set_aside("noise.rate=0.2") == usual
    assert set_aside("noise.seed=1") != usual
    truth = make_scenes(NUM_TRAIN, split="train").image_of_text
    save_noise(make_noise(truth, rate=0.6, seed=5), tmp_path / "noise.npy")
    from_file = f"noise.file={tmp_path / 'noise.npy'}"
    assert set_aside(from_file) == usual
    assert set_aside(from_file, "noise.seed=1") == set_aside("noise.seed=1")


def test_too_few_or_too_many_trusted_images_are_told() -> None:
    with pytest.raises(UserError, match="'mscn' learns from some pairs known to be right; say how many images"):
        prepared("data.trusted_images=0")
    with pytest.raises(UserError, match=r"data\.trusted_images is 24, but the training data has 24 images"):
        prepared(f"data.trusted_images={NUM_TRAIN}")


def test_other_methods_have_none_unless_asked() -> None:
    without = prepare(load_recipe("scenes-infonce", [s for s in SMALL if "trusted" not in s]))
    assert without.trusted is None
    assert len(without.train) == len(make_scenes(NUM_TRAIN, split="train"))
