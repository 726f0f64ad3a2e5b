"""Text that is not text: surrogates, bytes that are not UTF-8, nested JSON, numbers of thousands of digits."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hostile.harness import AUDIT, Case, write_pairs
from layouts import image_bytes, write_image

SHARD = ("audit", "s.tar", "--workers", "0", "-o", "audit")
NESTED, DIGITS = b'{"caption": ' + b"[" * 100_000, b'{"caption": ' + b"9" * 5000 + b"}"


def cases() -> Iterator[Case]:
    yield from _shards()
    yield from _tables()
    yield from _parquet()
    yield from _annotations()
    yield from _lists()


def rows_in_table(count: int, problems: int) -> Callable[[Path], None]:
    """No row is lost: as many rows as there were, so many of them with a problem."""

    def check(folder: Path) -> None:
        import pyarrow.parquet as parquet

        table = parquet.read_table(folder / "audit" / "pairs.parquet")
        reported = len(table) - table["problem"].null_count
        assert (len(table), reported) == (count, problems), table.to_pylist()

    return check


def _tar(*hostile: tuple[bytes, bytes]) -> Callable[[Path], None]:
    """A shard of four good samples and these members, whose names are raw bytes."""

    def write(folder: Path) -> None:
        members = [(f"{k}.{kind}".encode(), content) for k in range(4)
                   for kind, content in (("png", image_bytes()), ("txt", f"caption {k}".encode()))]  # fmt: skip
        with tarfile.open(folder / "s.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for name, content in (*members, *hostile):
                entry = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))

    return write


def _shards() -> Iterator[Case]:
    image = image_bytes()
    captions = {
        "nested 100,000 deep": (NESTED, "json"),
        "a number of 5,000 digits": (DIGITS, "json"),
        "a lone surrogate": (b'{"caption": "a \\ud800 b"}', "json"),
        "not UTF-8 in JSON": (b'{"caption": "\xff"}', "json"),
        "cut JSON": (b'{"caption": "a', "json"),
        "a JSON list": (b"[1]", "json"),
        "a caption that is a number": (b'{"caption": 3}', "json"),
        "a caption that is null": (b'{"caption": null}', "json"),
        "a table as caption": (b'{"caption": {"a": 1}}', "json"),
        "no caption in JSON": (b"{}", "json"),
        "not UTF-8": (b"\xff\xfe", "txt"),
        "UTF-16": ("a caption".encode("utf-16"), "txt"),
        "a surrogate as UTF-8": (b"\xed\xa0\x80", "txt"),
        "empty": (b"", "txt"),
        "blank": (b" \t\n", "txt"),
        "a megabyte and more": (b"a" * (2 << 20), "txt"),
    }
    for name, (content, kind) in captions.items():
        prepare = _tar((b"9.png", image), (f"9.{kind}".encode(), content))
        yield Case(f"caption: {name}", SHARD, "1 could not be scored", prepare, 0, rows_in_table(5, 1))
    for name in (
        b"\xff\xfe",
        b"a\xed\xa0\x80",
        b"\xc3\x28",
        b"../../x",
        b"/etc/x",
        b"a\nb",
        b"a\x1b[31mb",
        b"-rf",
        b"=1+1",
    ):
        prepare = _tar((name + b".png", image), (name + b".txt", b"a caption"))
        check = rows_in_table(5, int(b"\xff" in name or b"\xed" in name or b"\xc3" in name))
        yield Case(f"member name {name!r}", SHARD, "scored pairs", prepare, 0, check)


def _csv(line: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        write_pairs(folder)
        with (folder / "pairs.csv").open("ab") as file:
            file.write(line + b"\n")

    return write


def _tables() -> Iterator[Case]:
    problems = {
        b"p9,0.png,\xff\xfe,train": "not UTF-8",
        b"p9,0.png,\xed\xa0\x80,train": "not UTF-8",
        b"p9,0.png,,train": "the caption is empty",
        b"p9,0.png,   ,train": "the caption is empty",
        b"p0,0.png,twice,train": "the id has appeared before",
        b"p9,0.png": "2 fields where the header has 4",
        b"p9,0.png,a,b,c,d": "6 fields where the header has 4",
        b'p9,0.png,"a,train': "not readable as a row",
        b"p9,,a caption,train": "no image|image",
        b"p9,nowhere.png,a caption,train": "the image is missing",
        b"p9,../../../etc/passwd,a caption,train": "image",
        b"p9,/etc/passwd,a caption,train": "image",
        b"p9,/dev/zero,a caption,train": "image",
        b"p9,.,a caption,train": "image",
        b"p9,\x00.png,a caption,train": "image|row",
        b"p9," + b"a" * 5000 + b".png,a caption,train": "image",
        b"p9,pairs.csv,a caption,train": "image",
    }
    for line, says in problems.items():
        yield Case(f"row {line[:50]!r}", (*AUDIT, "-o", "audit"), says, _csv(line), 0, rows_in_table(5, 1))
    fine = (b"p9,0.png,\x00\x01\x02,train", "p9,0.png,\u202e\u200b\ufeff😀,train".encode(), b"p9,0.png,=1+1,train",
            b"p9,0.png," + b"word " * 20_000 + b",train", b'p9,0.png,"a\nb",train', b"p9,0.png,<script>,train",
            b"p9,0.png,$(rm -rf x),train", b"p9,0.png,{{7*7}},train", b"p9,0.png,%s%n,train",
            b"\x1b[2J,0.png,a caption,train")  # fmt: skip
    for line in fine:
        yield Case(f"row {line[:50]!r}", (*AUDIT, "-o", "audit"), "scored pairs", _csv(line), 0, rows_in_table(5, 0))
    mixed = _csv(b"p9,https://example.org/a.png,a caption,train")
    says = "1 could not be scored: the image is a web address"
    yield Case("an image on the web", (*AUDIT, "-o", "audit"), says, mixed, 0, rows_in_table(5, 1))
    whole = {
        b"": "is empty; its first line must name the columns",
        b"\n": "its first line must name the columns|column",
        b"\xff\xfe\n": "line 1: not UTF-8",
        b"id,file\n": "title|column",
        b'"id,file,title\n': "the header cannot be read|column",
        b"\x00" * 100: "column|header|row",
        b"id,file,title\n": "holds no pairs|no rows",
        b"title,title,file,id\n": "column|holds no pairs",
        b"a" * 200_000 + b"\n": "column|header",
    }
    for content, says in whole.items():
        prepare = lambda folder, content=content: (folder / "pairs.csv").write_bytes(content)  # noqa: E731
        yield Case(f"table {content[:30]!r}", (*AUDIT, "-o", "audit"), says, prepare)


def _parquet() -> Iterator[Case]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    def write(captions: Any, **other: Any) -> Callable[[Path], None]:
        def prepare(folder: Path) -> None:
            names = [f"{k}.png" for k in range(5)]
            for name in names:
                write_image(folder / name)
            columns = {"id": [f"p{k}" for k in range(5)], "file": names, "title": captions, **other}
            parquet.write_table(pa.table(columns), folder / "pairs.parquet")

        return prepare

    command = ("audit", "pairs.parquet", *AUDIT[2:], "-o", "audit")
    good = [f"caption {k}" for k in range(4)]
    offsets, raw = (
        pa.py_buffer(b"".join(k.to_bytes(4, "little") for k in (0, 1, 2, 3, 4, 5))),
        pa.py_buffer(b"abcd\xff"),
    )
    broken = pa.Array.from_buffers(pa.string(), 5, [None, offsets, raw])
    types = {
        "string_view": pa.array([*good, "e"], type=pa.string_view()),
        "large_string": pa.array([*good, "e"], type=pa.large_string()),
        "dictionary": pa.array([*good, "e"]).dictionary_encode(),
    }
    for name, column in types.items():
        yield Case(f"captions as {name}", command, "scored pairs", write(column), 0, rows_in_table(5, 0))
    for name, column in {"a null": pa.array([*good, None]), "not UTF-8": broken}.items():
        says = "1 could not be scored"
        yield Case(f"captions: {name}", command, says, write(column), 0, rows_in_table(5, 1))
    note = {"note": broken}  # a column that is neither image nor caption: no pair is lost
    yield Case(
        "another column: not UTF-8", command, "scored pairs", write([*good, "e"], **note), 0, rows_in_table(5, 0)
    )
    binary = pa.array([*map(str.encode, good), b"\xff"], type=pa.binary())
    columns = {"binary": binary, "numbers": pa.array(range(5)), "lists": pa.array([[1]] * 5), "null": pa.nulls(5)}
    for name, column in columns.items():
        says = "the caption is not text|the caption is empty|no pairs that can be used"
        yield Case(f"captions: {name}", command, says, write(column))
    for name, content in {
        "empty": b"",
        "text": b"a,b\n",
        "magic alone": b"PAR1PAR1",
        "cut": b"PAR1" + b"x" * 500,
    }.items():
        prepare = lambda folder, content=content: (folder / "pairs.parquet").write_bytes(content)  # noqa: E731
        yield Case(f"Parquet: {name}", command, "is not a readable Parquet file", prepare)


def _annotations() -> Iterator[Case]:
    """JSON collections: a file that cannot be read is named with its line."""
    contents: dict[str, tuple[bytes, str]] = {
        "nested": (b'{"images": ' + b"[" * 100_000, "is not readable JSON"),
        "a number of 5,000 digits": (b'{"images": [' + b"9" * 5000 + b"]}", "is not readable JSON"),
        "not UTF-8": (b'{"images": "\xff"}', "line 1: not UTF-8"),
        "cut": (b'{"images": [', "line 1: not valid JSON"),
        "empty": (b"", "not valid JSON|none of the known formats"),
    }
    for name, (content, says) in contents.items():
        for format in ("karpathy", "coco"):
            prepare = lambda folder, content=content: (folder / "a.json").write_bytes(content)  # noqa: E731
            yield Case(f"{format}: {name}", ("audit", "a.json", "--format", format, "-o", "audit"), says, prepare)
    sentences = [{"raw": "a \ud800 b", "tokens": [], "imgid": 0, "sentid": 0}]
    content = {"images": [{"filename": "0.png", "imgid": 0, "split": "train", "sentences": sentences}]}

    def surrogate(folder: Path) -> None:
        write_pairs(folder)
        good = [{"filename": f"{k}.png", "imgid": k, "split": "train",
                 "sentences": [{"raw": f"caption {k}", "tokens": [], "imgid": k, "sentid": k}]}
                for k in range(1, 4)]  # fmt: skip
        (folder / "a.json").write_text(json.dumps({"images": content["images"] + good}))

    command = ("audit", "a.json", "--format", "karpathy", "--image-root", ".", "--workers", "0", "-o", "audit")
    yield Case("karpathy: a lone surrogate", command, "1 could not be scored", surrogate, 0, rows_in_table(4, 1))


def _lists() -> Iterator[Case]:
    """Keep-lists and vocabularies."""
    train = ("train", "scenes-srem", "-o", "out", "--set", "data.train_options.num_scenes=2")
    for content, says in {b"\xff\n": "UTF-8", b"": "keep|empty|none", b"nobody\n": "keep|none|no pair"}.items():
        prepare = lambda folder, content=content: (folder / "keep.txt").write_bytes(content)  # noqa: E731
        yield Case(f"keep-list {content!r}", (*train, "--keep", "keep.txt"), says, prepare)
    for name, content in {"nested": b"[" * 100_000, "digits": b"9" * 5000, "list": b"[1]", "text": b"x"}.items():
        prepare = lambda folder, content=content: (folder / "v.json").write_bytes(content)  # noqa: E731
        yield Case(f"vocabulary: {name}", (*train, "--set", "data.vocabulary=v.json"), "v.json", prepare)
