"""An extraction covers every row, skips unreadable images, and survives being killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fake_encoders import FakeImages, FakeSentences
from layouts import image_bytes, make_image, write_image, write_tar
from sremkit.data import Batches, read_pairs
from sremkit.data.formats import read_collection
from sremkit.data.formats.features import JOURNAL, MANIFEST, extracted_images
from sremkit.errors import DataError, UserError
from sremkit.features.extract import TEXTS_PER_CHUNK, Extraction, extract_features

COLOURS = ["red", "lime", "blue", "white", "black", "yellow"]


def write_table(folder: Path, *, train: int = 7, val: int = 3, captions: int = 2) -> Path:
    """A CSV of images in their colours, in two splits."""
    rows = ["image,caption,split"]
    for k in range(train + val):
        write_image(folder / f"{k}.png", COLOURS[k % 6])
        split = "train" if k < train else "val"
        rows += [f"{k}.png,caption {c} of a {COLOURS[k % 6]} image,{split}" for c in range(captions)]
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n")
    return folder / "pairs.csv"


def extract(source: Path, out: Path, **options) -> Extraction:
    settings = {
        "features": ("pooled", "grid", "sentences"),
        "workers": 0,
        "batch_size": 4,
        "image_encoder": FakeImages(),
        "text_encoder": FakeSentences(),
    }
    return extract_features(read_collection(source), out, **{**settings, **options})


def test_the_image_files_of_extracted_features_are_known(tmp_path: Path) -> None:
    source = write_table(tmp_path)
    (tmp_path / "2.png").write_bytes(b"no image")
    extract(source, tmp_path / "features")
    pairs = read_pairs(tmp_path / "features", split="val")
    images = extracted_images(tmp_path / "features", pairs)
    assert images is not None
    assert [images.name(k) for k in range(3)] == [str(tmp_path / f"{k}.png") for k in (7, 8, 9)]
    assert images.open(1).getpixel((0, 0)) == (0, 0, 255)  # blue, the colour of image 8
    train = read_pairs(tmp_path / "features", split="train")
    assert extracted_images(tmp_path / "features", train).name(2).endswith("3.png")  # 2.png is left out
    (tmp_path / "features" / "image_files.jsonl").unlink()  # of an earlier version
    assert extracted_images(tmp_path / "features", pairs) is None


def test_extracted_images_of_an_archive_are_read_at_their_offset(tmp_path: Path) -> None:
    members: list[tuple[str, bytes]] = []
    for k, color in enumerate(COLOURS):
        write_image(tmp_path / f"{k}.png", color)
        members += [(f"{k}.png", (tmp_path / f"{k}.png").read_bytes()), (f"{k}.txt", f"a {color} image".encode())]
    write_tar(tmp_path / "shards" / "0.tar", members)
    extract(tmp_path / "shards", tmp_path / "features")
    pairs = read_pairs(tmp_path / "features")
    images = extracted_images(tmp_path / "features", pairs)
    assert images is not None
    assert [images.open(k).getpixel((0, 0)) for k in (0, 2)] == [(255, 0, 0), (0, 0, 255)]


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# As version 0.1 wrote it for `write_table`; the keys and the fingerprint must not change.
JOURNAL_OF_VERSION_1 = """\
{"version": 1, "fingerprint": "21b5324b6e3e7b7a", "arrays": {"pooled": {"shape": [10, 3], "encoder": "mean colours"}, \
"grid": {"shape": [10, 4, 3], "encoder": "mean colours"}, "sentences": {"shape": [20, 2], "encoder": "lengths"}}}
{"done": {"images": 4, "texts": 0}, "problems": {}}
{"done": {"images": 6, "texts": 0}, "problems": {}}
"""


def test_an_interrupted_extraction_of_an_older_version_is_resumed(tmp_path: Path) -> None:
    source = write_table(tmp_path / "source")
    extract(source, tmp_path / "out")
    finished = files_of(tmp_path / "out")
    for name in finished.keys() - {"pooled.npy", "grid.npy", "sentences.npy"}:
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / JOURNAL).write_text(JOURNAL_OF_VERSION_1)
    assert extract(source, tmp_path / "out").work["images"].encoded == 4
    assert files_of(tmp_path / "out") == finished


def test_every_row_gets_its_own_features_and_splits_are_kept(tmp_path: Path) -> None:
    source = write_table(tmp_path / "source")
    extraction = extract(source, tmp_path / "out")
    assert (extraction.num_images, extraction.problems) == (10, {})
    for split in ("train", "val"):
        given, stored = read_pairs(source, split=split), read_pairs(tmp_path / "out", split=split)
        assert (stored.name, stored.split) == ("pairs", split)
        assert list(stored.pair_ids) == list(given.pair_ids)
        assert list(stored.texts) == list(given.texts)
        assert list(stored.image_ids) == list(given.image_ids)
        np.testing.assert_array_equal(stored.image_of_text, given.image_of_text)
        for k, image_id in enumerate(stored.image_ids):
            expected = FakeImages().encode(make_image(COLOURS[int(image_id.removesuffix(".png")) % 6]))
            (vector,) = stored.image_features.rows(np.array([k])).values
            np.testing.assert_array_equal(vector, expected.pooled.astype(np.float16).astype(np.float32))
        lengths = stored.text_features.rows(np.arange(len(stored))).values[:, 0]
        np.testing.assert_array_equal(lengths, [len(text) for text in given.texts])


def test_the_grid_can_be_read_in_the_place_of_the_vectors(tmp_path: Path) -> None:
    extract(write_table(tmp_path / "source"), tmp_path / "out")
    pairs = read_pairs(tmp_path / "out", features="grid")
    assert pairs.image_features.rows(np.array([0, 1])).values.shape == (2, 4, 3)


@pytest.mark.parametrize("options", [{"workers": 2}, {"batch_size": 3}, {"workers": 1, "batch_size": 100}])
def test_workers_and_batch_size_change_no_byte(tmp_path: Path, options: dict) -> None:
    source = write_table(tmp_path / "source")
    extract(source, tmp_path / "plain")
    extract(source, tmp_path / "other", **options)
    assert files_of(tmp_path / "other") == files_of(tmp_path / "plain")


def damaged_table(folder: Path) -> Path:
    source = write_table(folder)
    (folder / "2.png").write_bytes(b"not an image")
    whole = (folder / "8.png").read_bytes()
    (folder / "8.png").write_bytes(whole[: len(whole) // 2])
    return source


def test_unreadable_images_are_reported_marked_and_left_out(tmp_path: Path) -> None:
    extraction = extract(damaged_table(tmp_path / "source"), tmp_path / "out")
    assert list(extraction.problems) == ["2.png", "8.png"]
    assert "cannot be decoded" in extraction.problems["2.png"]
    header, *lines = (tmp_path / "out" / "skipped.tsv").read_text().splitlines()
    assert header == "row\timage\tsplit\tproblem"
    assert [line.split("\t")[:3] for line in lines] == [["2", "2.png", "train"], ["8", "8.png", "val"]]
    pooled = np.load(tmp_path / "out" / "pooled.npy")
    assert np.flatnonzero(np.isnan(pooled).any(axis=1)).tolist() == [2, 8]
    train = read_pairs(tmp_path / "out", split="train")
    assert "2.png" not in train.image_ids
    assert (len(train), train.num_images) == (12, 6)
    assert train.skipped.reasons == {"the image could not be read": 2}
    assert "2.png: the image cannot be decoded" in train.skipped.examples[0]


def test_what_was_extracted_can_be_trained_on(tmp_path: Path) -> None:
    extract(damaged_table(tmp_path / "source"), tmp_path / "out")
    pairs = read_pairs(tmp_path / "out", split="train")
    batches = list(Batches(pairs, batch_size=5).epoch(0))
    assert sum(len(batch) for batch in batches) == 12
    assert all(bool(batch.images.isfinite().all()) for batch in batches)
    images = Batches(pairs, batch_size=5).take_images(np.arange(pairs.num_images))
    assert bool(images.images.isfinite().all())


def test_a_marked_row_read_as_a_plain_array_is_an_error(tmp_path: Path) -> None:
    source = damaged_table(tmp_path / "source")
    extract(source, tmp_path / "out", features=["pooled"])
    (tmp_path / "numbers.csv").write_text("text\n" + "".join(f"text {k}\n" for k in range(10)))
    pairs = read_pairs(tmp_path / "numbers.csv", image_features=tmp_path / "out" / "pooled.npy")
    with pytest.raises(DataError, match=r"pooled\.npy, row 2: the features hold NaN"):
        pairs.image_features.rows(np.arange(10))


def test_no_readable_image_is_an_error(tmp_path: Path) -> None:
    source = write_table(tmp_path / "source", train=2, val=1)
    for k in range(3):
        (tmp_path / "source" / f"{k}.png").write_bytes(b"junk")
    with pytest.raises(DataError, match="none of the 3 images could be read, the first because"):
        extract(source, tmp_path / "out")
    assert not (tmp_path / "out" / MANIFEST).exists()


def folder_of_images(folder: Path) -> Path:
    for k in range(5):
        write_image(folder / f"{k}.png", COLOURS[k]).with_suffix(".txt").write_text(f"a {COLOURS[k]} one")
    return folder


def shards(folder: Path) -> Path:
    members = [(f"{k}.png", image_bytes(COLOURS[k])) for k in range(5)]
    texts = [(f"{k}.txt", f"a {COLOURS[k]} one".encode()) for k in range(5)]
    write_tar(folder / "x-0.tar", [*members[:3], *texts[:3]])
    write_tar(folder / "x-1.tar", [*members[3:], *texts[3:]])
    return folder


@pytest.mark.parametrize("write", [folder_of_images, shards])
def test_folders_and_shards_without_splits_are_read_whole_under_any_name(tmp_path: Path, write) -> None:
    extract(write(tmp_path / "source"), tmp_path / "out")
    pairs = read_pairs(tmp_path / "out", split="test")
    assert [text.split()[1] for text in pairs.texts] == COLOURS[:5]
    vectors = pairs.image_features.rows(np.arange(5)).values
    expected = np.stack([FakeImages().encode(make_image(colour)).pooled for colour in COLOURS[:5]])
    np.testing.assert_allclose(vectors, expected, rtol=1e-3)


def test_ids_and_texts_may_hold_tabs_line_breaks_and_quotes(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    (tmp_path / "pairs.csv").write_text('id,image,text\n"x\ty",a.png,"two\nlines, ""quoted"" and\tmore"\n')
    extract(tmp_path / "pairs.csv", tmp_path / "out")
    pairs = read_pairs(tmp_path / "out")
    assert list(pairs.pair_ids) == ["x\ty"]
    assert list(pairs.texts) == ['two\nlines, "quoted" and\tmore']


def test_sentences_alone_need_no_images(tmp_path: Path) -> None:
    np.save(tmp_path / "train_ims.npy", np.zeros((2, 3), dtype=np.float32))
    (tmp_path / "train_caps.txt").write_text("a dog\na cat\n")
    with pytest.raises(DataError, match=r"has no images.*extract sentences only"):
        extract(tmp_path, tmp_path / "out")
    extract(tmp_path, tmp_path / "out", features=["sentences"])
    assert read_pairs(tmp_path / "out").image_features is None
    assert read_pairs(tmp_path / "out").text_features.dim == 2


@pytest.mark.parametrize(("what", "said"), [(["poled"], "no features called 'poled'"), ([], "no features were")])
def test_the_error_for_unknown_features_lists_the_known_ones(tmp_path: Path, what: list, said: str) -> None:
    with pytest.raises(UserError, match=f"{said}.*choose from: pooled, grid, sentences"):
        extract(write_table(tmp_path), tmp_path / "out", features=what)


def test_a_finished_extraction_is_not_made_again(tmp_path: Path) -> None:
    source = write_table(tmp_path / "source")
    extract(source, tmp_path / "out")
    before = files_of(tmp_path / "out")
    calls: list = []
    again = extract(source, tmp_path / "out", progress=lambda *numbers: calls.append(numbers))
    assert again.was_complete
    assert again.num_images == 10
    assert calls == []
    assert files_of(tmp_path / "out") == before


CHANGES = {
    "another text": ("caption 0 of a red", "caption 9 of a red"),
    "another image": ("3.png,caption 0", "4.png,caption 0"),
    "another split": ("6.png,caption 1 of a red image,train", "6.png,caption 1 of a red image,val"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_pairs_are_noticed(tmp_path: Path, change: str) -> None:
    source = write_table(tmp_path / "source")
    extract(source, tmp_path / "out")
    before = source.read_text()
    source.write_text(before.replace(*CHANGES[change]))
    assert source.read_text() != before
    with pytest.raises(UserError, match="the pairs have changed"):
        extract(source, tmp_path / "out")


def test_progress_counts_existing_rows_and_problems(tmp_path: Path) -> None:
    calls: list = []
    extract(damaged_table(tmp_path / "source"), tmp_path / "out", progress=lambda *numbers: calls.append(numbers))
    assert calls == [
        ("images", 0, 10, 0),
        ("images", 4, 10, 1),
        ("images", 8, 10, 1),
        ("images", 10, 10, 2),
        ("texts", 0, 20, 2),
        ("texts", 20, 20, 2),
    ]


def test_an_error_of_the_encoder_is_not_hidden_and_the_work_before_it_is_kept(tmp_path: Path) -> None:
    class Failing(FakeImages):
        def encode(self, image):
            if np.asarray(image)[-1, -1].tolist() == [255, 255, 255]:  # the fourth image is white
                raise ZeroDivisionError
            return super().encode(image)

    source = write_table(tmp_path / "source")
    with pytest.raises(ZeroDivisionError):
        extract(source, tmp_path / "out", image_encoder=Failing(), batch_size=1)
    calls: list = []
    extract(source, tmp_path / "out", progress=lambda *numbers: calls.append(numbers))
    assert calls[0] == ("images", 3, 10, 0)


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from fake_encoders import FakeImages, FakeSentences
from sremkit.data.formats import read_collection
from sremkit.features.extract import extract_features

if __name__ == "__main__":
    extract_features(
        read_collection({source!r}), {out!r}, features=("pooled", "grid", "sentences"), workers=2, batch_size=2,
        image_encoder=FakeImages(seconds=0.05), text_encoder=FakeSentences(), save_seconds=0,
    )
"""


def test_a_killed_extraction_resumes_to_the_bytes_of_an_uninterrupted_one(tmp_path: Path) -> None:
    source = write_table(tmp_path / "source", train=60, val=20, captions=TEXTS_PER_CHUNK // 60)
    for k in (11, 70):
        (tmp_path / "source" / f"{k}.png").write_bytes(b"junk")
    extract(source, tmp_path / "whole")
    tests = str(Path(__file__).parents[1])
    program = KILLED.format(path=[tests], source=str(source), out=str(tmp_path / "out"))
    journal, stops = tmp_path / "out" / JOURNAL, []
    for lines in (4, 12):
        child = subprocess.Popen([sys.executable, "-c", program])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and child.poll() is None:
            if journal.exists() and journal.read_bytes().count(b"\n") >= lines:
                break
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL  # it was killed at work, and had not finished by itself
        stops.append(journal.read_bytes().count(b"\n"))
    assert 4 <= stops[0] < stops[1]
    calls: list = []
    extract(source, tmp_path / "out", progress=lambda *numbers: calls.append(numbers))
    assert 0 < calls[0][1] < 80  # the third run did neither everything nor nothing
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
