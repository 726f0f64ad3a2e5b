"""Arrays that are no arrays, or not of numbers, or larger than any disk."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hostile.damage import Change, a_folder, append, cut, empty, flip, missing, set_key, write
from hostile.harness import AUDIT, Case, damaged, good, settings
from layouts import write_precomp

GOOD = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
EMBEDDINGS = ("audit", "--image-emb", "x.npy", "--text-emb", "y.npy", "-o", "audit")


def header(shape: str, dtype: str = "<f4", data: bytes = b"\0" * 64) -> bytes:
    """A .npy file of version 1 with any header."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def npy(array: np.ndarray) -> Change:
    def change(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, array)

    return change


def npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=GOOD)


def pickled(path: Path) -> None:
    """An array of objects, whose loading would run code."""
    with path.open("wb") as file:
        np.save(file, np.array([{}], dtype=object), allow_pickle=True)


FILES: dict[str, Change] = {
    "a .npz archive": npz,
    "pickled objects": pickled,
    "strings": npy(np.array(["a", "b"] * 30)),
    "byte strings": npy(np.array([b"a", b"b"] * 30)),
    "dates": npy(np.zeros((60, 4), "datetime64[s]")),
    "complex numbers": npy(GOOD.astype(np.complex64)),
    "records": npy(np.zeros(60, dtype=[("a", "<f4")])),
    "no dimension": npy(np.float32(3)),
    "one dimension": npy(GOOD[:, 0]),
    "five dimensions": npy(GOOD[:, :, None, None, None]),
    "no rows": npy(GOOD[:0]),
    "no columns": npy(GOOD[:, :0]),
    "87 TiB": write(header("(6000000000, 4000)")),
    "10^30 rows": write(header(f"({10**30}, 4)")),
    "a negative shape": write(header("(-60, 4)")),
    "a shape of text": write(header("('a', 4)")),
    "a shape of floats": write(header("(60.0, 4)")),
    "an unknown type": write(header("(60, 4)", dtype="<z9")),
    "fewer bytes than its shape": write(header("(60, 4)", data=b"\0" * 10)),
    "a header that is code": write(header("__import__('os').getpid()")),
    "a header of 10,000 brackets": write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 10_000) + b"[" * 10_000),
    "another version": write(b"\x93NUMPY\x09\x00" + bytes(100)),
    "magic alone": write(b"\x93NUMPY"),
    "empty": empty,
    "text": write("1 2 3\n"),
    "a folder": a_folder,
    "missing": missing,
}


def cases() -> Iterator[Case]:
    yield from _embeddings()
    yield from _precomputed()
    yield from _index_files()
    yield from _features()
    yield from _audits()


def _pair_of_arrays(file: str, change: Change) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        for name in ("x.npy", "y.npy"):
            np.save(folder / name, GOOD)
        change(folder / file)

    return prepare


def _embeddings() -> Iterator[Case]:
    for name, change in FILES.items():
        for file in ("x.npy", "y.npy"):
            says = rf"{file[0]}\.npy|there are (0 image|60 image embeddings for 0 text)"
            yield Case(f"{file}: {name}", EMBEDDINGS, says, _pair_of_arrays(file, change))
    values = {
        "other number of rows": GOOD[:30],
        "NaN": np.where(np.arange(60)[:, None] == 7, np.nan, GOOD),
        "infinity": np.where(np.arange(60)[:, None] == 7, np.inf, GOOD),
    }
    for name, array in values.items():
        prepare, code = _pair_of_arrays("x.npy", npy(array)), 2 if name.startswith("other") else 0
        yield Case(f"x.npy: {name}", EMBEDDINGS, "30 image embeddings|1 could not be scored", prepare, code)


def _precomputed() -> Iterator[Case]:
    command = ("train", "f30k-sgr-srem", "-o", "out", *settings("data.source=data", "data.format=precomp"))

    def prepare_with(file: str, change: Change) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            for split in ("train", "val", "test"):
                write_precomp(folder / "data", split, np.ones((4, 2, 3), np.float32), ["a b c"] * 4)
            change(folder / "data" / file)

        return prepare

    for name, change in FILES.items():
        yield Case(f"train_ims.npy: {name}", command, r"train_ims\.npy|no split", prepare_with("train_ims.npy", change))
    for name, change in {"empty": empty, "a folder": a_folder, "not UTF-8": write(b"\xff\n" * 4)}.items():
        yield Case(f"train_caps.txt: {name}", command, "train_caps", prepare_with("train_caps.txt", change))


def _index_files() -> Iterator[Case]:
    inspect = ("noise", "inspect", "n.npy")
    for name, change in FILES.items():

        def prepare(folder: Path, change: Change = change) -> None:
            np.save(folder / "n.npy", np.arange(5))
            change(folder / "n.npy")

        yield Case(f"noise file: {name}", inspect, r"n\.npy", prepare)
    values = {"negative": [-1, 0], "of 2^63": np.array([2**63, 0], "u8"), "of 10^15": [10**15, 0], "floats": [0.5, 1.0]}
    for name, array in values.items():
        prepare = lambda folder, array=array: np.save(folder / "n.npy", np.array(array))  # noqa: E731
        yield Case(f"noise file: numbers {name}", inspect, r"n\.npy", prepare)


def _features() -> Iterator[Case]:
    """A folder of features, on which a model is trained."""
    command = ("train", "features-dual-srem", "-o", "out", *settings("data.source=features"))
    for name, change in FILES.items():
        for file in ("pooled", "sentences"):
            prepare = damaged("run", f"features/{file}.npy", change)
            yield Case(f"features: {file}.npy: {name}", command, rf"{file}\.npy", prepare)
    texts: dict[str, Change] = {"cut": cut, "empty": empty, "a folder": a_folder, "binary": write(bytes(range(256))),
                                "nested": write("[" * 100_000), "a list": write("[]\n"), "null": write("null\n"),
                                "digits": write("9" * 5000)}  # fmt: skip
    for file in ("features.json", "images.jsonl", "pairs.jsonl"):
        for name, change in texts.items():
            says = rf"{file}|holds no pairs"
            yield Case(f"features: {file}: {name}", command, says, damaged("run", f"features/{file}", change))
    newer = "was written by a newer version of sremkit"
    for value, says in (
        (99, newer),
        (0, "its version is 0"),
        ("x", "its version is 'x'"),
        ([], r"its version is \[\]"),
    ):
        prepare = damaged("run", "features/features.json", set_key("version", value))
        yield Case(f"features.json: version {value!r}", command, says, prepare)
    for key in ("name", "has_splits", "splits", "arrays"):
        for value in (None, 3, "x", [1]):
            prepare = damaged("run", "features/features.json", set_key(key, value))
            says = "features"
            code = 0 if (key, value) == ("name", "x") else 2
            yield Case(f"features.json: {key} = {value!r}", command, says, prepare, code=code)


def _audits() -> Iterator[Case]:
    """The folder of an audit: damaged files are named, or made again by the same command."""
    export, again = ("export", "audit", "-o", "keep.txt"), (*AUDIT, "-o", "audit")
    ways: dict[str, Change] = {"cut": cut, "empty": empty, "text": write("x"), "nested": write("[" * 100_000),
                               "a list": write("[]"), "digits": write("9" * 5000), "last byte": flip(-1),
                               "longer": append(b"x")}  # fmt: skip
    for name, change in ways.items():
        for file in ("pairs.parquet", "summary.json", "audit.json"):
            prepare = damaged("audit", f"audit/{file}", change)
            yield Case(f"audit: {file}: {name}", again, "scored pairs are flagged", prepare, code=0)
            if file == "pairs.parquet":
                says = r"pairs\.parquet is damaged .* the same `srem audit` command makes it again"
                yield Case(f"audit: {file}: {name}", export, says, prepare)
        for array in ("pooled.npy", "sentences.npy", "features.json", "images.jsonl", "pairs.jsonl"):

            def prepare_features(folder: Path, array: str = array, change: Change = change) -> None:
                damaged("audit", f"audit/features/*/{array}", change)(folder)
                (folder / "audit" / "summary.json").unlink()

            says = "scored pairs are flagged|remove|copy or make it again"
            yield Case(f"audit: features/{array}: {name}", again, says, prepare_features, code=-1)
    for command in (again, export):
        prepare = damaged("audit", "audit/audit.json", set_key("version", 99))
        says = "was written by a newer version of sremkit"
        yield Case("audit: audit.json: version 99", command, says, prepare)
    for out, says in (("audit/pairs.parquet", "exists already"), ("pairs.csv", "exists already"), (".", "exists"),
                      ("0.png/keep.txt", "Not a directory|is a file|exists"), ("", "exists already|name")):  # fmt: skip
        yield Case(f"export to {out!r}", ("export", "audit", "-o", out), says, good("audit"))
    for folder in ("nowhere", "pairs.csv", ".", "audit/features"):
        yield Case(f"export of {folder}", ("export", folder, "-o", "keep.txt"), "audit", good("audit"))
