"""Pixels of batches: the processor of transformers, the cache, worker processes, unreadable images, augmentation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from layouts import coco_content, karpathy_content, write_flickr8k, write_image, write_json, write_shard
from pretrained_models import KINDS, PIXELS, transformers, write_pairs
from sremkit.data import Batches, Vocabulary
from sremkit.data import pixels as pixels_module
from sremkit.data.augmentation import Augmentation, crop_images
from sremkit.data.decoder import Decoder
from sremkit.data.formats import read_pairs
from sremkit.data.generated.scenes import make_scenes
from sremkit.data.image_transform import ImageTransform
from sremkit.data.images import FileImages
from sremkit.data.pixels import (
    PixelReading,
    UnreadableImagesWarning,
    cache_key,
    has_pixels,
    readable_pairs,
    with_pixels,
)
from sremkit.data.prefetch import prefetch
from sremkit.errors import DataError

SMALL = ImageTransform(8, 8, shortest_edge=8)


def photos(folder: Path, count: int = 10) -> FileImages:
    write_pairs(folder, count)
    return FileImages([folder / f"{k}.png" for k in range(count)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(40, 24), (24, 41), (16, 16), (9, 33)])
def test_images_are_prepared_as_the_models_own_processor_does(tmp_path: Path, kind: str, size: tuple[int, int]) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PIXELS[kind]))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
    expected = processor(Image.fromarray(noise), return_tensors="pt")["pixel_values"][0]
    got = ImageTransform.from_processor(PIXELS[kind])(Image.fromarray(noise))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_transform_is_written_down_and_read_back() -> None:
    transform = ImageTransform.from_processor(PIXELS["clip"])
    assert ImageTransform.from_dict(json.loads(json.dumps(transform.to_dict()))) == transform
    # (255 / 255 - 0.5) / 0.5 = 1, and (51 / 255 - 0.5) / 0.5 = -0.6
    assert ImageTransform(1, 1)(Image.new("RGB", (3, 3), (255, 51, 0))).flatten().tolist() == pytest.approx(
        [1, -0.6, -1]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_rescale": False}, "do_rescale = False"),
        ({"rescale_factor": 1.0}, "only 1/255"),
        ({"size": {"longest_edge": 3}}, "known are shortest_edge"),
        ({"do_center_crop": False}, "do not give images of one size"),
        ({"crop_size": 40}, "cannot be cropped"),
    ],
)
def test_processors_that_do_something_else_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ImageTransform.from_processor({**PIXELS["clip"], **changes})


def test_worker_processes_decode_the_same_pixels_in_the_same_order(tmp_path: Path) -> None:
    images, rows = photos(tmp_path, 20), np.array([3, 19, 0, 3, 11, 5, 6, 7, 8, 9, 10])
    here, workers = Decoder(images, SMALL), Decoder(images, SMALL, workers=2)
    try:
        np.testing.assert_array_equal(workers.decode(rows).pixels, here.decode(rows).pixels)
        streamed = np.concatenate([part.pixels for part in workers.stream(3)])
        np.testing.assert_array_equal(streamed, here.decode(np.arange(3, 20)).pixels)
    finally:
        workers.close()


@pytest.mark.parametrize("cache", ["auto", "folder"])
def test_the_cache_equals_decoding(tmp_path: Path, cache: str) -> None:
    images, rows = photos(tmp_path), np.array([4, 0, 9, 4])
    decoded = PixelReading(cache="off").open(images, SMALL)
    cached = PixelReading(cache=str(tmp_path / "cache") if cache == "folder" else cache).open(images, SMALL)
    np.testing.assert_array_equal(cached.rows(rows).values, decoded.rows(rows).values)
    assert decoded.rows(rows).values.shape == (4, 3, 8, 8)
    assert decoded.rows(rows).values.dtype == np.float32
    expected = torch.stack([SMALL(images.open(k)) for k in rows])
    np.testing.assert_allclose(cached.rows(rows).values, expected.numpy(), rtol=1e-6)


def test_a_cache_is_filled_once_continued_after_an_interruption_and_made_again_for_other_images(
    tmp_path: Path, monkeypatch
) -> None:
    images, reading = photos(tmp_path), PixelReading(cache=str(tmp_path / "cache"))
    opened: list[int] = []
    read = FileImages.open

    def count(self: FileImages, index: int) -> Image.Image:
        if len(opened) == 8 and not (tmp_path / "interrupted").exists():
            (tmp_path / "interrupted").touch()
            raise KeyboardInterrupt
        opened.append(index)
        return read(self, index)

    monkeypatch.setattr(FileImages, "open", count)
    monkeypatch.setattr(pixels_module, "SAVE_SECONDS", -1.0)
    monkeypatch.setattr("sremkit.data.decoder.CHUNK", 2)
    with pytest.raises(KeyboardInterrupt):
        reading.open(images, SMALL)
    first = reading.open(images, SMALL).rows(np.arange(10)).values
    assert opened == list(range(10))
    np.testing.assert_array_equal(reading.open(images, SMALL).rows(np.arange(10)).values, first)
    assert opened == list(range(10))  # nothing was decoded again
    before = cache_key(images, SMALL)
    write_image(tmp_path / "3.png", "white")
    assert cache_key(images, SMALL) != before != cache_key(images, ImageTransform(9, 9))
    assert cache_key(make_scenes(2, seed=1).images, SMALL) != cache_key(make_scenes(2).images, SMALL)


def test_unreadable_images_are_reported_and_their_pairs_left_out(tmp_path: Path) -> None:
    pairs = read_pairs(write_pairs(tmp_path, 10), split="train")
    (tmp_path / "2.png").write_bytes((tmp_path / "2.png").read_bytes()[:60])
    with pytest.warns(UnreadableImagesWarning, match=r"1 of 6 images .* so 1 pairs are left out.*2\.png"):
        read = with_pixels(pairs, SMALL)
    assert has_pixels(read).tolist() == [True, True, False, True, True, True]
    left = readable_pairs(read)
    assert (len(left), left.num_images, "2.png" in left.image_ids) == (5, 5, False)
    np.testing.assert_array_equal(
        left.image_features.rows(np.array([2])).values, read.image_features.rows(np.array([3])).values
    )
    for k in range(10):
        (tmp_path / f"{k}.png").write_bytes(b"no image")
    with pytest.warns(UnreadableImagesWarning), pytest.raises(DataError, match="none of the 6 images"):
        with_pixels(pairs, SMALL)


def test_an_image_that_breaks_later_is_an_error_with_its_name(tmp_path: Path) -> None:
    pixels = PixelReading(cache="off").open(photos(tmp_path), SMALL)
    (tmp_path / "4.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"4\.png.*could be read when the run began"):
        pixels.rows(np.array([1, 4]))


def sources(folder: Path) -> dict[str, tuple[Path, dict]]:
    """Every format that has images, with what it is read with."""
    captions = {"0.png": ["a red square"], "1.png": ["a blue square"]}
    images = folder / "images"
    for name, color in (("0", "red"), ("1", "blue")):
        write_image(images / f"{name}.png", color)
        (images / f"{name}.txt").write_text("a square")
    table = folder / "pairs.csv"
    table.write_text("image,caption\nimages/0.png,a red square\nimages/1.png,a blue square\n")
    (folder / "shards").mkdir()
    write_shard(folder / "shards" / "0.tar", {"0": "a red square", "1": "a blue square"})
    root = {"image_root": str(images)}
    return {
        "csv": (table, {}),
        "folder": (images, {}),
        "webdataset": (folder / "shards", {}),
        "karpathy": (write_json(folder / "dataset_x.json", karpathy_content(captions)), root),
        "coco": (write_json(folder / "captions_train.json", coco_content(captions)), root),
        "scenes": (Path("scenes"), {"num_scenes": 2}),
        "flickr8k": (write_flickr8k(folder / "flickr8k", {"train": 2}), {}),
    }


@pytest.mark.parametrize("name", ["csv", "folder", "webdataset", "karpathy", "coco", "scenes", "flickr8k"])
def test_every_format_with_images_yields_pixels(tmp_path: Path, name: str) -> None:
    path, options = sources(tmp_path)[name]
    pairs = with_pixels(read_pairs(path, split="train", **options), SMALL)
    vocabulary = Vocabulary.build(pairs.texts, min_count=1)
    batch = Batches(pairs, batch_size=2, vocabulary=vocabulary, shuffle=False).take(np.arange(2))
    assert batch.images.shape == (2, 3, 8, 8)
    assert batch.images.dtype == torch.float32
    expected = torch.stack([SMALL(pairs.images.open(int(k))) for k in pairs.image_of_text[:2]])
    torch.testing.assert_close(batch.images, expected)


def test_prefetched_batches_that_a_device_normalises_are_the_same() -> None:
    pairs = with_pixels(make_scenes(4), SMALL)
    batches = Batches(pairs, batch_size=6, vocabulary=Vocabulary.build(pairs.texts, min_count=1))
    order = batches.own_order(0)
    for staged in (False, True):
        found = list(prefetch(batches, order, "cpu", threads=2, staged=staged))
        for rows, batch in zip(order, found, strict=True):
            torch.testing.assert_close(batch.images, batches.take(rows).images, rtol=1e-6, atol=1e-6)


def left_is_dark(count: int) -> torch.Tensor:
    images = torch.ones(count, 3, 16, 16)
    images[..., :8] = 0
    return images


def test_crops_stay_inside_keep_left_and_right_and_depend_on_pair_and_epoch_alone() -> None:
    augmentation = Augmentation(500, seed=1, min_area=0.3)
    rows = np.arange(500)
    boxes = augmentation.boxes(rows, 0)
    half = boxes[:, 2:]
    assert (half > 0).all()  # nothing is mirrored
    assert (np.abs(boxes[:, :2]) + half <= 1 + 1e-6).all()
    area = half.prod(axis=1)
    assert 0.3 - 1e-6 <= area.min() < 0.4
    assert area.max() > 0.95
    few = np.array([7, 401, 3])
    np.testing.assert_array_equal(Augmentation(500, seed=1, min_area=0.3).boxes(few, 0), boxes[few])
    assert not np.allclose(augmentation.boxes(rows, 1), boxes)
    np.testing.assert_array_equal(augmentation.boxes(rows, 0), boxes)
    cropped = crop_images(left_is_dark(500), torch.from_numpy(boxes))
    assert (cropped[..., 0] <= cropped[..., -1]).all()


def test_mirroring_is_only_on_request_and_the_whole_image_is_itself() -> None:
    images = torch.rand(3, 3, 16, 16)
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(3, 1)
    torch.testing.assert_close(crop_images(images, whole), images, rtol=1e-5, atol=1e-5)
    mirrored = Augmentation(3, seed=0, flip=1.0).boxes(np.arange(3), 0)
    torch.testing.assert_close(crop_images(images, torch.from_numpy(mirrored)), images.flip(-1), rtol=1e-5, atol=1e-5)
    assert not Augmentation(3, seed=0).is_on
