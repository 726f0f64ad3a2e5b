"""Noise protocols that are not permutations: what is wrong, what is left out, and what the data must have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layouts import write_image
from sremkit.cli.main import main
from sremkit.config.recipes import load_recipe
from sremkit.data.mismatches import FUNCTION_WORDS, content_words, near, one_word, partner_absent, shared_word
from sremkit.data.noise import PROTOCOLS, load_noise, make_noise, save_noise
from sremkit.data.pairs import MISSING, Pairs
from sremkit.data.training_pairs import with_noise
from sremkit.errors import DataError, UserError
from sremkit.experiment import make_trainer, prepare
from sremkit.training.reporters import HistoryReporter

FIVE_EACH = np.repeat(np.arange(40), 5)
ANIMALS, ACTIONS = ("dog", "horse", "cat", "bird", "cow"), ("runs", "sleeps", "jumps", "eats")
#: Image k shows one animal in one action; its captions say so.
CAPTIONS = [f"A {ANIMALS[k % 5]} {ACTIONS[k % 4]} on the {['grass', 'sand'][k % 2]}." for k in FIVE_EACH]
NEW_PROTOCOLS = [name for name in PROTOCOLS if name not in ("caption", "image")]

thorough = settings(max_examples=60, deadline=None, derandomize=True)
mappings = st.builds(
    lambda images, captions, seed: np.random.default_rng(seed).permutation(np.repeat(3 * np.arange(images), captions)),
    st.integers(2, 12), st.integers(1, 4), st.integers(0, 9),
)  # fmt: skip


def vectors_of(number: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((number, 6))


def noise_of(protocol: str, rate: float = 0.4, seed: int = 0):
    return make_noise(FIVE_EACH, rate, protocol, seed, texts=CAPTIONS, vectors=vectors_of(len(FIVE_EACH)))


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.4, 0.6])
@pytest.mark.parametrize("protocol", NEW_PROTOCOLS)
def test_the_realised_rate_is_the_requested_one(protocol: str, rate: float) -> None:
    assert noise_of(protocol, rate).rate == pytest.approx(rate, abs=1 / 100)


@pytest.mark.parametrize("protocol", NEW_PROTOCOLS)
def test_the_seed_decides_the_noise_and_the_hash_identifies_it(protocol: str) -> None:
    first, again, other = (noise_of(protocol, seed=seed) for seed in (3, 3, 4))
    assert first.hash == again.hash != other.hash
    assert first.seed == 3
    assert first.protocol == protocol
    np.testing.assert_array_equal(first.image_of_text, again.image_of_text)
    assert first.texts == again.texts


@pytest.mark.parametrize("protocol", NEW_PROTOCOLS)
def test_a_rate_of_0_changes_nothing(protocol: str) -> None:
    noise = noise_of(protocol, 0.0)
    np.testing.assert_array_equal(noise.image_of_text, FIVE_EACH)
    assert not noise.is_noisy.any()
    assert noise.is_used.all()
    assert noise.texts is None or list(noise.texts) == CAPTIONS


@thorough
@given(mappings, st.floats(0, 1), st.integers(0, 100))
def test_the_right_image_of_a_wrong_caption_is_absent(mapping, rate, seed) -> None:
    before = mapping.copy()
    paired = partner_absent(mapping, rate, seed)
    np.testing.assert_array_equal(mapping, before)
    used = paired != MISSING
    wrong, right = used & (paired != mapping), used & (paired == mapping)
    present = set(paired[used].tolist())
    assert present.isdisjoint(mapping[wrong].tolist())  # the owners of wrong captions are not in the collection
    assert present.issuperset(mapping[right].tolist())
    kept = np.isin(mapping, list(present))
    # Each wrong caption is in the place of a right one, so images keep their numbers of captions.
    np.testing.assert_array_equal(np.sort(paired[used]), np.sort(mapping[kept]))
    assert wrong.sum() == np.floor(rate * kept.sum() + 1e-6)


def test_donors_are_as_few_as_the_rate_allows() -> None:
    paired = partner_absent(FIVE_EACH, 0.6, seed=0)
    # 15 donors of 40 images have 75 captions, 60 % of the 125 others; 14 have 70, fewer than 60 % of 130.
    assert len(np.unique(paired[paired != MISSING])) == 25


def test_a_near_mismatch_is_one_of_the_nearest_captions_of_another_image() -> None:
    image_of_text = np.array([0, 0, 1, 2, 3, 3])
    angles = np.array([0.0, 0.02, 0.1, 0.3, 3.0, 3.1])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.arange(1, 7)[:, None]  # length must not matter
    assert near(image_of_text, vectors, 1.0, seed=0, neighbors=1).tolist() == [1, 1, 0, 1, 2, 2]
    two = {tuple(near(image_of_text, vectors, 1.0, seed=seed, neighbors=2)[:1]) for seed in range(20)}
    assert two == {(1,), (2,)}


def test_a_near_mismatch_is_nearer_than_a_permutation() -> None:
    centers = np.random.default_rng(1).standard_normal((40, 6))
    vectors = centers[FIVE_EACH] + 0.1 * vectors_of(len(FIVE_EACH))

    def distance(paired: np.ndarray) -> float:
        moved = paired != FIVE_EACH
        return float(np.linalg.norm(centers[paired[moved]] - centers[FIVE_EACH[moved]], axis=1).mean())

    paired = near(FIVE_EACH, vectors, 0.5, seed=0)
    assert distance(paired) < 0.8 * distance(make_noise(FIVE_EACH, 0.5).image_of_text)


def test_a_caption_without_a_neighbour_stays_right() -> None:
    assert near(np.zeros(4, dtype=np.int64), vectors_of(4), 1.0, seed=0).tolist() == [0] * 4


@pytest.mark.parametrize("seed", range(5))
def test_a_wrong_caption_shares_a_content_word_with_a_right_one_of_its_image(seed: int) -> None:
    paired = shared_word(CAPTIONS, FIVE_EACH, 0.6, seed)
    moved = np.flatnonzero(paired != FIVE_EACH)
    assert len(moved) == 120
    for text in moved:
        right = {word for k in np.flatnonzero(paired[text] == FIVE_EACH) for word in content_words(CAPTIONS[k])}
        assert right.intersection(content_words(CAPTIONS[text]))


def test_captions_without_a_word_in_common_stay_right() -> None:
    texts = ["red car", "blue car", "green tree", "the of"]
    assert shared_word(texts, np.arange(4), 1.0, seed=0).tolist() == [1, 0, 2, 3]


@pytest.mark.parametrize("seed", range(5))
def test_one_content_word_is_exchanged_for_one_that_no_caption_of_the_image_has(seed: int) -> None:
    changed = one_word(CAPTIONS, FIVE_EACH, 0.5, seed)
    differing = [k for k, (new, old) in enumerate(zip(changed, CAPTIONS, strict=True)) if new != old]
    assert len(differing) == 100
    for k in differing:
        new, old = changed[k].split(), CAPTIONS[k].split()
        places = [(a.strip("."), b.strip(".")) for a, b in zip(new, old, strict=True) if a != b]
        assert len(places) == 1
        word, before = places[0]
        assert word not in FUNCTION_WORDS
        assert before not in FUNCTION_WORDS
        assert word not in content_words(CAPTIONS[k])
        kinds = (ANIMALS, ACTIONS, ("grass", "sand"))
        assert [word in kind for kind in kinds] == [before in kind for kind in kinds]  # of the same kind


def test_words_are_exchanged_in_place() -> None:
    texts = ['He said: "A DOG runs!"', "A cat runs"]
    assert one_word(texts, np.arange(2), 1.0, seed=0) == ['He said: "A cat runs!"', "A dog runs"]


def test_content_words_are_found_once_and_in_order() -> None:
    assert content_words("The dog and the Dog's T-shirt, with a DOG.") == ["dog", "dog's", "t-shirt"]


@pytest.mark.parametrize(
    ("protocol", "given", "message"),
    [
        ("near", {}, "compares sentence vectors, and these pairs have none"),
        ("near", {"vectors": np.zeros((3, 2))}, "3 sentence vectors for 200 captions"),
        ("shared-word", {}, "'shared-word' reads the captions"),
        ("one-word", {}, "'one-word' reads the captions"),
        ("one-word", {"texts": ["a"]}, "1 texts for 200 captions"),
        ("shared-word", {"texts": ["the of"] * 200}, "can make no pair of these data wrong"),
        ("absent", {"rate": 1.5}, "a fraction between 0 and 1"),
        ("captions", {}, "must be 'absent', .*'caption' or 'image', got 'captions'"),
    ],
)
def test_what_is_missing_is_named(protocol: str, given: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make_noise(FIVE_EACH, **{"rate": 0.4, "protocol": protocol, **given})


def test_absent_partners_need_two_images() -> None:
    with pytest.raises(DataError, match="too few images to hold some of them out"):
        make_noise(np.zeros(5, dtype=np.int64), 0.4, "absent")


@pytest.mark.parametrize("protocol", ["absent", "near", "shared-word"])
def test_an_index_file_holds_the_noise(protocol: str, tmp_path: Path) -> None:
    noise = noise_of(protocol)
    save_noise(noise, tmp_path / "noise.npy")
    loaded = load_noise(tmp_path / "noise.npy", FIVE_EACH)
    np.testing.assert_array_equal(loaded.image_of_text, noise.image_of_text)
    np.testing.assert_array_equal(loaded.is_noisy, noise.is_noisy)
    assert loaded.hash == noise.hash
    assert loaded.rate == noise.rate
    if protocol == "absent":
        assert loaded.protocol == "absent"


def test_changed_captions_have_no_index_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="changes captions and not the pairing"):
        save_noise(noise_of("one-word"), tmp_path / "noise.npy")


def test_images_of_donors_are_not_in_the_training_pairs() -> None:
    noise = noise_of("absent", 0.5)
    clean = Pairs("made", "train", [str(k) for k in range(200)], CAPTIONS, FIVE_EACH, [f"i{k}" for k in range(40)])
    train, true_image, is_noisy = with_noise(clean, noise)
    assert len(train) == noise.is_used.sum() == 5 * train.num_images
    np.testing.assert_array_equal(is_noisy, true_image == MISSING)
    for k in range(len(train)):
        own = f"i{FIVE_EACH[int(train.pair_ids[k])]}"
        assert (own in train.image_ids) == (not is_noisy[k])
        assert (train.image_ids[train.image_of_text[k]] == own) == (not is_noisy[k])


SMALL = [
    "data.train_options.num_scenes=24", "data.options.num_scenes=10", "noise.rate=0.4", "training.batch_size=8",
    "model.embed_size=8", "model.word_dim=8", "training.device=cpu", "training.epochs=1", "training.warmup_epochs=0",
]  # fmt: skip


@pytest.mark.parametrize("protocol", ["absent", "shared-word", "one-word"])
def test_a_recipe_trains_with_every_protocol_and_measures_its_noise(protocol: str) -> None:
    ready = prepare(load_recipe("scenes-infonce", [*SMALL, f"noise.protocol={protocol}"]))
    assert ready.is_noisy.mean() == pytest.approx(0.4, abs=0.02) == ready.noise.rate
    assert len(ready.is_noisy) == len(ready.train)
    history: list[dict] = []
    make_trainer(ready, HistoryReporter(history)).run()
    assert 0.1 < history[-1]["noisy_pull_ratio"] < 0.9


def test_a_model_of_sentence_vectors_cannot_read_a_changed_word(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="reads sentence vectors, which would be those of the right ones"):
        prepare(load_recipe("scenes-infonce", [*SMALL, "noise.protocol=one-word", 'model={name="dual"}']))


def test_the_command_writes_every_protocol(tmp_path: Path, capsys) -> None:
    rows = "".join(f"{k},{k // 5}.png,{text}\n" for k, text in enumerate(CAPTIONS))
    for k in range(40):
        write_image(tmp_path / f"{k}.png")
    table = tmp_path / "pairs.csv"
    table.write_text("id,image,text\n" + rows)
    for protocol, name in (("absent", "a.npy"), ("shared-word", "s.npy"), ("one-word", "w.txt")):
        options = ["--data", str(table), "--rate", "0.1", "--protocol", protocol, "-o", str(tmp_path / name)]
        assert main(["noise", "make", *options]) == 0
        assert "realised rate        0.1" in capsys.readouterr().out
    lines = (tmp_path / "w.txt").read_text().splitlines()
    assert sum(new != old for new, old in zip(lines, CAPTIONS, strict=True)) == 20
    wrong = ["--data", str(table), "--protocol", "one-word", "-o", str(tmp_path / "w.npy")]
    assert main(["noise", "make", *wrong]) == 2
    assert "a text file, .txt, with one caption a line" in capsys.readouterr().err
    assert main(["noise", "make", "--images", "9", "--protocol", "near", "-o", str(tmp_path / "n.npy")]) == 2
    assert "sentence vectors" in capsys.readouterr().err
