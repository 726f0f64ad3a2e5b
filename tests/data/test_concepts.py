"""Generated collections of the paper's sizes: layout, determinism, frequencies, and captions that fit their images."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sremkit.cli.main import main
from sremkit.data import read_pairs
from sremkit.data.generated.concepts import _ConceptModel, collection_like, write_collection
from sremkit.errors import UserError

SMALL = dict(images=300, num_regions=6, dim=32, num_concepts=60, num_topics=5, num_rare_words=50)


def small(like: str = "f30k", **changes: object):
    return collection_like(like, **{**SMALL, **changes})


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_published_sizes() -> None:
    assert collection_like("f30k").splits == {"train": 29_000, "dev": 1_014, "test": 1_000}
    assert collection_like("coco").splits["train"] == 113_287
    assert collection_like("cc152k").captions_per_image == 1
    assert (collection_like("coco").num_regions, collection_like("coco").dim) == (36, 2048)


def test_the_layout_is_read_like_real_features(tmp_path: Path) -> None:
    write_collection(small(), tmp_path)
    train, dev = read_pairs(tmp_path, split="train"), read_pairs(tmp_path, split="dev")
    assert (train.num_images, len(train), dev.num_images) == (300, 1500, 30)
    rows, _ = train.image_features.rows(np.arange(3))
    assert rows.shape == (3, 6, 32)
    assert (rows >= 0).all()
    assert rows.max() > 0
    assert "not real data" in json.loads((tmp_path / "generated.json").read_text())["generated"]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_collection(small(seed=seed), tmp_path / name)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    a, c = contents(tmp_path / "a"), contents(tmp_path / "c")
    assert all(a[name] != c[name] for name in a)


def test_an_interrupted_call_goes_on_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    write_collection(small(), tmp_path / "whole")

    class StopError(Exception): ...

    def stop(stage: str, done: int, total: int) -> None:
        if stage.startswith("dev") and done:
            raise StopError

    with pytest.raises(StopError):
        write_collection(small(), tmp_path / "stopped", stop)
    assert (tmp_path / "stopped" / "train_caps.txt").exists()
    assert not (tmp_path / "stopped" / "dev_caps.txt").exists()
    seen: list[str] = []
    write_collection(small(), tmp_path / "stopped", lambda stage, done, total: seen.append(stage))
    assert not any(stage.startswith("train") for stage in seen)
    assert contents(tmp_path / "whole") == contents(tmp_path / "stopped")


def test_other_settings_and_other_files_are_refused(tmp_path: Path) -> None:
    write_collection(small(), tmp_path / "a")
    with pytest.raises(UserError, match="other settings"):
        write_collection(small(seed=1), tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="holds other files"):
        write_collection(small(), tmp_path / "b")
    with pytest.raises(UserError, match="choose from: f30k, coco, cc152k"):
        collection_like("flickr")


def word_counts(zipf: float) -> Counter[str]:
    """How often the first word of each concept occurs in 1,000 captions."""
    model = _ConceptModel(small(zipf=zipf, num_topics=1))
    _, captions = model.chunk(0, 0, 200)
    counts = Counter(word for caption in captions for word in caption.split())
    return Counter({synonyms[0]: counts[synonyms[0]] for synonyms in model.synonyms})


def test_concepts_have_zipf_frequencies_and_uniform_ones_on_request() -> None:
    natural = [count for _, count in word_counts(1.0).most_common()]
    uniform = [count for _, count in word_counts(0.0).most_common()]
    assert natural[0] > 5 * natural[30]
    assert uniform[0] < 3 * uniform[30]


def test_captions_name_what_the_regions_show() -> None:
    model = _ConceptModel(small(strength=2.0, num_regions=24, dim=128))
    regions, captions = model.chunk(0, 0, 50)
    concept_of_word = {word: k for k, words in enumerate(model.synonyms) for word in words}
    evidence = np.maximum(model.prototypes, 0)
    evidence = evidence - evidence.mean(axis=0)
    strongest = (regions @ evidence.T).max(axis=1)  # (images, concepts): the best region of each concept
    named = np.zeros_like(strongest, dtype=bool)
    for k, caption in enumerate(captions):
        named[k // 5, [concept_of_word[w] for w in caption.split() if w in concept_of_word]] = True
    assert named.any(axis=1).all()
    # A named concept has more evidence in its own image than in another one.
    own, other = strongest[named], np.roll(strongest, 1, axis=0)[named & ~np.roll(named, 1, axis=0)]
    assert np.mean(own) > np.mean(other) + 2 * np.std(other)


def test_natural_noise_moves_captions_and_records_which(tmp_path: Path) -> None:
    write_collection(small("cc152k", wrong_rate=0.2), tmp_path / "noisy")
    write_collection(small("cc152k", wrong_rate=0.0), tmp_path / "clean")
    noisy, clean = ((tmp_path / name / "train_caps.txt").read_text().split("\n") for name in ("noisy", "clean"))
    wrong = np.load(tmp_path / "noisy" / "train_wrong.npy")
    assert [a != b for a, b in zip(noisy[:-1], clean[:-1], strict=True)] == wrong.tolist()
    assert 0.15 < wrong.mean() <= 0.2
    assert sorted(noisy) == sorted(clean)


def test_the_command_writes_a_collection_and_refuses_impossible_numbers(tmp_path: Path, capsys) -> None:
    options = ["--like", "f30k", "--images", "40", "--regions", "3", "--dim", "8", "--concepts", "20"]
    assert main(["data", "make", *options, "-o", str(tmp_path / "made")]) == 0
    assert "48 generated images with 240 captions; not real data" in capsys.readouterr().out
    assert main(["data", "make", "--images", "0", "-o", str(tmp_path / "x")]) == 2
    assert "--images must lie between 1 and 10,000,000, got 0" in capsys.readouterr().err
    assert main(["data", "make", "--seed", "-1", "-o", str(tmp_path / "x")]) == 2
