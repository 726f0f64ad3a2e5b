"""Folders of models: CLIP for --encoder and fine-tuning, --init, published checkpoints; and training on pixels."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from hostile.arrays import npy
from hostile.damage import (
    BINARY,
    HUGE_NUMBER,
    NESTED,
    NOT_UTF8,
    Change,
    a_folder,
    cut,
    empty,
    flip,
    missing,
    set_key,
    write,
)
from hostile.harness import SETTINGS, Case, damaged, good, run_command, settings
from layouts import image_bytes

TEXTS: dict[str, Change] = {"cut": cut, "empty": empty, "not UTF-8": NOT_UTF8, "nested": NESTED, "digits": HUGE_NUMBER,
                            "a list": write("[]"), "a number": write("3"), "binary": BINARY}  # fmt: skip
LOADED = r"cannot be loaded|config\.json|no tokenizer that can be read"
TRAIN = ("train", "clip-finetune-srem", "-o", "out", *settings(
    "data.source=data/pairs.csv", "model.folder=clip", "training.epochs=1", "training.batch_size=6",
    "training.learning_rate=1e-3", "data.pixel_cache=cache"))  # fmt: skip


def cases() -> Iterator[Case]:
    yield from _encoders()
    yield from _starts()
    yield from _published()
    yield from _images()
    yield from _pixel_caches()


def _encoders() -> Iterator[Case]:
    """What a package of others raises on a damaged folder becomes a sentence; no code of the folder runs."""
    features = ("features", "data/pairs.csv", "--encoder", "clip", "-o", "out", "--workers", "0")
    audit = ("audit", "data/pairs.csv", "--encoder", "clip", "-o", "out", "--workers", "0")
    for name, change in TEXTS.items():
        for file in ("config.json", "preprocessor_config.json", "tokenizer.json"):
            yield Case(f"{file}: {name}", features, LOADED, damaged("clip", f"clip/{file}", change))
    for name, change in {"cut": cut, "empty": empty, "missing": missing, "flipped": flip(20)}.items():
        for command in (features, TRAIN):
            yield Case(
                f"weights: {name}", command, "cannot be loaded", damaged("clip", "clip/model.safetensors", change)
            )
    values: dict[str, tuple[Any, ...]] = {
        "model_type": (None, 3, [], "bert"), "projection_dim": (None, "x", -1, 10**30, True, 7),
        "text_config": (3, [], "x"), "vision_config.image_size": (None, "x", -1, 10**30),
        "vision_config.patch_size": ("x", -1, 3), "text_config.vocab_size": (3, "x"), "auto_map": (3,),
        "text_config.max_position_embeddings": (3, -1, "x"), "vision_config.hidden_size": (3, 10**30),
    }  # fmt: skip
    for key, each in values.items():
        for value in each:
            says = LOADED + "|holds a model of type|gives vectors of the shape"
            prepare = damaged("clip", "clip/config.json", set_key(key, value))
            yield Case(f"config.json: {key} = {value!r:.20}", features, says, prepare)
    for key, value in (
        ("size", {"shortest_edge": 10**9}),
        ("crop_size", {"height": 10**9, "width": 4}),
        ("size", 1e300),
    ):
        prepare = damaged("clip", "clip/preprocessor_config.json", set_key(key, value))
        for command, says in (
            (features, "at most 10,000 is supported"),
            (TRAIN, "image processor|cannot prepare|known are shortest_edge"),
        ):
            yield Case(f"preprocessor: {key} = {value}", command, says, prepare)
    for key, value in (("size", "x"), ("crop_size", {"height": -1, "width": 4}), ("image_mean", ["a", "b", "c"]),
                       ("rescale_factor", "x"), ("size", [0, 0, 0])):  # fmt: skip
        prepare = damaged("clip", "clip/preprocessor_config.json", set_key(key, value))
        for command in (features, TRAIN):
            says = LOADED + "|known are shortest_edge|cannot prepare images|no configuration of an image processor"
            yield Case(f"preprocessor: {key} = {value}", command, says, prepare)
    for command in (features, audit):
        yield Case("code in the folder", command, "trust_remote_code|cannot be loaded", _with_code, check=_no_code_ran)
    for command in (features, TRAIN):
        yield Case("weights that are a pickle", command, "cannot be loaded", _with_pickle, check=_no_code_ran)
    for encoder, says in {
        "nowhere": "holds no",
        "data": "holds no",
        "data/pairs.csv": "holds no",
        "": "holds no",
    }.items():
        command = (*features[:3], encoder, *features[4:])
        yield Case(f"--encoder {encoder!r}", command, says, good("clip"))


def _with_code(folder: Path) -> None:
    good("clip")(folder)
    (folder / "clip" / "evil.py").write_text("open('ran', 'w')\n")
    for file, kind, maps in (
        ("tokenizer_config.json", "tokenizer_class", {"AutoTokenizer": ["evil.T", None]}),
        ("preprocessor_config.json", "image_processor_type", {"AutoImageProcessor": "evil.P"}),
        ("config.json", "architectures", {"AutoConfig": "evil.C", "AutoModel": "evil.M"}),
    ):
        set_key("auto_map", maps)(folder / "clip" / file)
        set_key(kind, "Evil")(folder / "clip" / file)


class _Opens:
    """Pickled, it opens a file when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("ran", "w")


def _with_pickle(folder: Path) -> None:
    good("clip")(folder)
    (folder / "clip" / "model.safetensors").unlink()
    torch.save({"x": _Opens()}, folder / "clip" / "pytorch_model.bin")


def _no_code_ran(folder: Path) -> None:
    assert not (folder / "ran").exists()
    assert not (folder / "clip" / "ran").exists()


def _starts() -> Iterator[Case]:
    """`--init`: weights of a run or an exported model."""
    same = ("training.epochs=1", "training.warmup_epochs=1", "training.batch_size=16", "training.decay_after=1",
            "data.train_options.num_scenes=12", "data.options.num_scenes=6", "model.name=vse-infty",
            "model.embed_size=8", "model.word_dim=4")  # fmt: skip
    command = ("train", "scenes-srem", "-o", "out", *settings(*same), "--init")
    weights = "model/model.safetensors"
    for name, change in {"cut": cut, "empty": empty, "binary": BINARY, "flipped": flip(20)}.items():
        yield Case(f"init: weights: {name}", (*command, "model"), "is damaged", damaged("index", weights, change))
    none, finite = "no weight of .* fits", "holds NaN or infinite values"
    tensors: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
        "NaN": (lambda t: t * float("nan"), finite), "infinite": (lambda t: t + float("inf"), finite),
        "whole numbers": (lambda t: t.long(), none), "of bool": (lambda t: t > 0, none),
        "of other shapes": (lambda t: torch.zeros(7, 7), none),
    }  # fmt: skip
    for name, (change, says) in tensors.items():

        def prepare(folder: Path, change: Callable[[torch.Tensor], torch.Tensor] = change) -> None:
            good("index")(folder)
            save_file({key: change(t) for key, t in load_file(folder / weights).items()}, folder / weights)

        yield Case(f"init: weights: {name}", (*command, "model"), says, prepare)
    for name, change in TEXTS.items():
        prepare = damaged("index", "model/vocabulary.json", change)
        yield Case(f"init: vocabulary.json: {name}", (*command, "model"), "vocabulary", prepare)
    for source in ("nowhere", "", ".", "model/config.json", "org/../x"):
        yield Case(f"init: {source[:20]!r}", (*command, source), "is neither a run, nor an exported", good("index"))
    dual = ("train", "features-dual-srem", "-o", "out", *settings("data.source=features", *SETTINGS[1:]))
    other = ("scenes-srem", *settings(*same))

    def words_for_sentences(folder: Path) -> None:
        good("run")(folder)
        run_command(("train", *other, "-o", "words"))

    told = "2 of 14 weights are those of .*; the others .* begin at random"  # scale and bias
    yield Case("init: another backbone", (*dual, "--init", "words"), told, words_for_sentences, 0)


def _published() -> Iterator[Case]:
    """Checkpoints of the SGRAF family, of which a pickle is the format: read as tensors and plain values alone."""
    command = ("export-model", "m.pth.tar", "-o", "exported")
    zeros, code = torch.zeros(2, 2), "holds other objects than tensors"
    contents: dict[str, tuple[Any, str]] = {
        "an object that runs code": ({"model": _Opens()}, code), "a list": ([1], "holds no table"),
        "a tensor": (zeros, "holds no table"), "no model": ({}, "expected are 'model'"),
        "one of two models": ({"model_A": [{}, {}, {}]}, "expected are 'model'"),
        "null": ({"model": None}, "a list of three state dicts"), "two parts": ({"model": [{}, {}]}, "of three"),
        "no weights": ({"model": [{}, {}, {}]}, "another GRU"), "text": ({"model": [{"fc.weight": "x"}, {}, {}]}, "fc"),
        "numbers for names": ({"model": [{1: zeros}, {}, {}]}, "has weights that SGR and SAF do not have: 1"),
    }  # fmt: skip
    for name, (content, says) in contents.items():
        prepare = lambda folder, content=content: torch.save(content, folder / "m.pth.tar")  # noqa: E731
        yield Case(f"published: {name}", command, says, prepare, check=_no_code_ran)
    raw = {"empty": b"", "text": b"x" * 100, "a cut archive": b"PK\x03\x04" + b"x" * 50,
           "nested": b"\x80\x02" + b"(" * 10**5,
           "a call": b"\x80\x02cposix\nsystem\nX\x08\x00\x00\x00echo ran\x85R."}  # fmt: skip
    for name, data in raw.items():
        prepare = lambda folder, data=data: (folder / "m.pth.tar").write_bytes(data)  # noqa: E731
        yield Case(f"published: {name}", command, "cannot be read as a file|" + code, prepare)
    for source, says in {"nowhere": "does not exist", "features": "holds no run", "": "holds no run"}.items():
        yield Case(f"export-model {source!r}", ("export-model", source, "-o", "exported"), says, good("run"))
    for out, says in {"run": "is not empty", ".": "is not empty", "run/config.toml": "Not a directory"}.items():
        yield Case(f"export-model to {out}", ("export-model", "run", "-o", out), says, good("run"))


def _images() -> Iterator[Case]:
    """Training on pixels: an image that cannot be read leaves its pair out, and is told."""
    png = image_bytes()
    left_out = "1 of 9 images of pairs .* cannot be read, so 1 pairs are left out.*best validation"
    size = struct.pack(">II", 10**5, 10**5)
    unreadable: dict[str, Change] = {
        "cut": lambda path: path.write_bytes(path.read_bytes()[:40]), "empty": empty, "text": write("x"),
        "of 10^10 pixels": write(png[:16] + size + png[24:]), "SVG": write("<svg/>"), "PostScript": write("%!PS"),
        "a header of a JPEG file": write(b"\xff\xd8\xff\xe0" + b"\xff" * 50),
    }  # fmt: skip
    for name, change in unreadable.items():
        yield Case(f"pixels: {name}", TRAIN, left_out, damaged("clip", "data/0.png", change), 0)
    named = {"missing": missing, "a folder": a_folder, "a loop of links": _loop, "a pipe": _pipe, "a device": _device}
    for name, change in named.items():
        yield Case(f"pixels: {name}", TRAIN, r"0\.png|image is missing", damaged("clip", "data/0.png", change))

    def all_bad(folder: Path) -> None:
        good("clip")(folder)
        for image in folder.glob("data/*.png"):
            image.write_text("x")

    yield Case("pixels: no image", TRAIN, "none of the 9 images .* can be read", all_bad)


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _pixel_caches() -> Iterator[Case]:
    """A cache of resized images that is damaged is made again."""

    def filled(change: Change, file: str) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            good("clip")(folder)
            run_command(TRAIN)
            (folder / "out").rename(folder / "before")
            change(sorted(folder.glob(f"cache/*/{file}"))[0])

        return prepare

    def stopped(content: str) -> Change:
        def change(path: Path) -> None:
            path.with_name("progress.json").write_text(content)
            path.unlink()

        return change

    complete = {"cut": cut, "a list": write("[]"), "a row of no image": write('{"done": 9, "problems": {"x": ""}}')}
    pixels = {"cut": cut, "missing": missing, "other": npy(np.zeros((3, 3), "u1"))}
    progress = {"a list": "[]", "below 0": '{"done": -5, "problems": {}}',
                "beyond the end": '{"done": 99999, "problems": {}}',
                "text": '{"done": "x", "problems": {}}'}  # fmt: skip
    for name, change in complete.items():
        yield Case(f"cache: complete.json: {name}", TRAIN, "best validation", filled(change, "complete.json"), 0)
    for name, change in pixels.items():
        yield Case(f"cache: pixels.npy: {name}", TRAIN, "best validation", filled(change, "pixels.npy"), 0)
    for name, content in progress.items():
        prepare = filled(stopped(content), "complete.json")
        yield Case(f"cache: progress.json: {name}", TRAIN, "best validation", prepare, 0, _all_decoded)
    for folder, says in {"data/pairs.csv": "Not a directory", "/proc/x": "No such file", r"x\u0000": "NUL"}.items():
        command = (*TRAIN, "--set", f'data.pixel_cache="{folder}"')
        yield Case(f"cache: {folder}", command, says, good("clip"))


def _all_decoded(folder: Path) -> None:
    """No row of the cache is left as it was allocated."""
    for file in folder.glob("cache/*/pixels.npy"):
        stored = np.load(file)
        assert stored.any(axis=1).all(), file
