"""WebDataset shards, read without extracting them."""

from __future__ import annotations

import json
import os
import pickle

import pytest

from layouts import image_bytes, write_shard, write_tar
from sremkit.data import read_pairs
from sremkit.data.formats.webdataset import expand_ranges
from sremkit.errors import DataError


def test_a_shard_gives_a_pair_for_each_key(tmp_path):
    pairs = read_pairs(write_shard(tmp_path / "00000.tar", {"000": " a dog \n", "001": "a cat"}))
    assert pairs.pair_ids == ["000", "001"] == pairs.image_ids
    assert pairs.texts == ["a dog", "a cat"]
    assert pairs.images.open(1).size == (12, 8)
    assert pairs.images.name(1) == f"{tmp_path / '00000.tar'}, member 001.png"


def test_shards_that_the_webdataset_package_wrote_are_read(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "0.tar")) as writer:
        for k in range(5):
            writer.write({"__key__": f"{k:04d}", "png": image_bytes(), "txt": f"caption {k}"})
    pairs = read_pairs(tmp_path / "0.tar")
    assert pairs.pair_ids == ["0000", "0001", "0002", "0003", "0004"]
    assert pairs.texts == [f"caption {k}" for k in range(5)]
    assert pairs.images.open(3).getpixel((8, 6)) == (255, 0, 0)


def test_a_folder_and_a_pattern_give_all_shards_in_order(tmp_path):
    for k in (0, 2, 1):
        write_shard(tmp_path / f"shard-{k:03d}.tar", {f"k{k}": f"caption {k}"})
    (tmp_path / "00000_stats.json").write_text("{}")
    assert read_pairs(tmp_path).texts == ["caption 0", "caption 1", "caption 2"]
    assert read_pairs(tmp_path / "shard-{001..002}.tar").texts == ["caption 1", "caption 2"]


def test_ranges_expand_with_their_zeros():
    assert list(expand_ranges("a-{08..10}.tar")) == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert list(expand_ranges("{0..1}/{3..4}.tar")) == ["0/3.tar", "0/4.tar", "1/3.tar", "1/4.tar"]
    assert list(expand_ranges("plain.tar")) == ["plain.tar"]


def test_shards_named_like_splits_are_splits(tmp_path):
    write_shard(tmp_path / "cc-train-000.tar", {"a": "train"})
    write_shard(tmp_path / "cc-val-000.tar", {"b": "val"})
    assert read_pairs(tmp_path, split="train").texts == ["train"]
    assert read_pairs(tmp_path, split="dev").texts == ["val"]
    with pytest.raises(DataError, match="no split 'test'; it has: train, val"):
        read_pairs(tmp_path, split="test")


def test_subfolders_of_shards_named_like_splits_are_splits(tmp_path):
    write_shard(tmp_path / "train" / "000.tar", {"a": "train"})
    write_shard(tmp_path / "test" / "000.tar", {"b": "test"})
    assert read_pairs(tmp_path, split="test").texts == ["test"]
    with pytest.raises(DataError, match="no split 'val'; it has: test, train"):
        read_pairs(tmp_path, split="val")


def test_the_caption_is_read_from_the_json_if_there_is_no_text(tmp_path):
    members = [
        ("0.jpg", image_bytes(format="JPEG")),
        ("0.json", json.dumps({"caption": "from json", "alt": "other"}).encode()),
        ("0.txt", b"from text"),
        ("1.jpg", image_bytes(format="JPEG")),
        ("1.json", json.dumps({"caption": "from json", "alt": "other"}).encode()),
    ]
    path = write_tar(tmp_path / "0.tar", members)
    assert read_pairs(path).texts == ["from text", "from json"]
    assert read_pairs(path, caption_field="alt").texts == ["from text", "other"]


@pytest.mark.parametrize("suffix", ["jpg", "JPEG", "png", "webp", "avif"])
def test_every_usual_image_format_opens(tmp_path, suffix):
    kind = {"jpg": "JPEG"}.get(suffix, suffix.upper())
    members = [(f"a.{suffix}", image_bytes(format=kind)), ("a.txt", b"a dog")]
    image = read_pairs(write_tar(tmp_path / "0.tar", members)).images.open(0)
    assert (image.size, image.mode) == ((12, 8), "RGB")


def test_members_in_folders_keep_the_folder_in_their_key(tmp_path):
    pairs = read_pairs(write_shard(tmp_path / "0.tar", {"./x.y/000": "a dog", "z/000": "a cat"}))
    assert pairs.pair_ids == ["./x.y/000", "z/000"]


def test_a_key_ends_at_the_first_dot_so_masks_are_not_images(tmp_path):
    members = [("a.mask.png", image_bytes("blue")), ("a.png", image_bytes()), ("a.txt", b"a dog")]
    pairs = read_pairs(write_tar(tmp_path / "0.tar", members))
    assert pairs.pair_ids == ["a"]
    assert pairs.images.open(0).getpixel((8, 6)) == (255, 0, 0)


def test_a_key_in_two_shards_is_named_or_the_second_skipped(tmp_path):
    write_shard(tmp_path / "0.tar", {"a": "first", "b": "other"})
    write_shard(tmp_path / "1.tar", {"a": "second", "c": "third"})
    with pytest.raises(DataError, match=r"1\.tar, key a: the id has appeared before"):
        read_pairs(tmp_path)
    pairs = read_pairs(tmp_path, on_error="skip")
    assert pairs.texts == ["first", "other", "third"]
    assert len(pairs.images) == 3
    assert dict(pairs.skipped.reasons) == {"the id has appeared before": 1}


BAD_SAMPLES = {
    "no image": [("x.txt", b"a dog")],
    "no caption": [("x.png", image_bytes())],
    "the caption is empty": [("x.png", image_bytes()), ("x.txt", b" \n")],
    "not UTF-8": [("x.png", image_bytes()), ("x.txt", b"caf\xe9")],
    "its .json is not readable": [("x.png", image_bytes()), ("x.json", b"{")],
    "its .json has no caption under 'caption'": [
        ("x.png", image_bytes()),
        ("x.json", b'{"caption": null}'),
    ],
    "a second image": [("x.png", image_bytes()), ("x.jpg", image_bytes()), ("x.txt", b"dog")],
}


@pytest.mark.parametrize("reason", BAD_SAMPLES)
def test_a_bad_sample_is_named_or_skipped_and_counted(tmp_path, reason):
    good = [("a.png", image_bytes()), ("a.txt", b"a cat")]
    path = write_tar(tmp_path / "0.tar", [*BAD_SAMPLES[reason], *good])
    with pytest.raises(DataError) as caught:
        read_pairs(path)
    assert f"0.tar, key x: {reason}; " in str(caught.value)
    pairs = read_pairs(path, on_error="skip")
    assert pairs.texts[-1] == "a cat"
    assert dict(pairs.skipped.reasons) == {reason: 1}


def test_an_empty_image_counts_as_none(tmp_path):
    path = write_tar(tmp_path / "0.tar", [("x.png", b""), ("x.txt", b"a dog")])
    with pytest.raises(DataError, match="key x: no image"):
        read_pairs(path)


def test_a_text_too_long_for_a_caption_is_not_read(tmp_path):
    path = write_tar(tmp_path / "0.tar", [("x.png", image_bytes()), ("x.txt", b"a" * (1 << 20) + b"a")])
    with pytest.raises(DataError, match=r"0\.tar, member x\.txt: more than 1 MiB of text"):
        read_pairs(path)


def test_the_error_for_a_tar_without_samples_names_what_was_expected(tmp_path):
    path = write_tar(tmp_path / "0.tar", [("weights.bin", b"123")])
    with pytest.raises(DataError, match=r"0\.tar: no samples; expected members such as 000000\.jpg"):
        read_pairs(path)


def test_a_shard_cut_off_is_named_or_its_beginning_kept(tmp_path):
    path = write_shard(tmp_path / "0.tar", {"a": "a dog", "b": "a cat"})
    # Headers and contents fill whole blocks: a.png, a.txt, b.png take 2 each, so this cuts b.txt's header.
    assert len(image_bytes()) <= 512
    os.truncate(path, 6 * 512 + 100)
    with pytest.raises(DataError, match=r"0\.tar: cut off; copy or make it again"):
        read_pairs(path)
    pairs = read_pairs(path, on_error="skip")
    assert pairs.texts == ["a dog"]
    assert dict(pairs.skipped.reasons) == {"cut off": 1, "no caption": 1}


def test_a_missing_shard_is_named_or_skipped(tmp_path):
    write_shard(tmp_path / "s-0.tar", {"a": "a dog"})
    with pytest.raises(DataError, match=r"s-1\.tar: the archive does not exist"):
        read_pairs(tmp_path / "s-{0..1}.tar")
    pairs = read_pairs(tmp_path / "s-{0..1}.tar", on_error="skip")
    assert (pairs.texts, pairs.skipped.count) == (["a dog"], 1)


def test_a_corrupt_image_is_named_when_it_is_opened(tmp_path):
    members = [("a.jpg", image_bytes(format="JPEG")[:200]), ("a.txt", b"a dog")]
    pairs = read_pairs(write_tar(tmp_path / "0.tar", members))
    with pytest.raises(DataError, match=r"0\.tar, member a\.jpg: the image cannot be decoded .*leave its pairs out"):
        pairs.images.open(0)


def test_images_survive_the_way_into_a_worker(tmp_path):
    pairs = read_pairs(write_shard(tmp_path / "0.tar", {"a": "a dog"}))
    assert pickle.loads(pickle.dumps(pairs.images)).open(0).tobytes() == pairs.images.open(0).tobytes()


def test_nothing_is_written_next_to_the_shards(tmp_path):
    pairs = read_pairs(write_shard(tmp_path / "0.tar", {"../../evil": "a dog"}))
    pairs.images.open(0)
    assert sorted(os.listdir(tmp_path)) == ["0.tar"]
    assert not (tmp_path.parent.parent / "evil.png").exists()


def test_a_folder_without_shards_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no \.tar files"):
        read_pairs(tmp_path, format="webdataset")
