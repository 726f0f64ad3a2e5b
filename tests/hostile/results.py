"""What later commands read of an audit or a run: decisions, kept models, the search index, reused features."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hostile.arrays import npy
from hostile.damage import (
    BINARY,
    NESTED,
    NOT_UTF8,
    Change,
    a_folder,
    cut,
    drop_key,
    each,
    empty,
    flip,
    missing,
    other_tensors,
    set_key,
    without_checksum,
    write,
)
from hostile.harness import AUDIT, Case, damaged, good, settings

TEXTS: dict[str, Change] = {"cut": cut, "empty": empty, "missing": missing, "a folder": a_folder,
                            "not UTF-8": NOT_UTF8, "nested": NESTED, "a list": write("[]"), "null": write("null"),
                            "binary": BINARY}  # fmt: skip


def cases() -> Iterator[Case]:
    yield from _decisions()
    yield from _scores()
    yield from _indexes()
    yield from _reused()
    yield from _trackers()


def _sql(*statements: str) -> Change:
    def change(path: Path) -> None:
        database = sqlite3.connect(path)
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.close()

    return change


def _link(path: Path) -> None:
    path.rename("elsewhere.sqlite")
    path.symlink_to(Path("elsewhere.sqlite").absolute())


def _reviewed(change: Change) -> Callable[[Path], None]:
    """An audit with three decisions, whose database is then changed."""

    def prepare(folder: Path) -> None:
        from sremkit.audit.decisions import Decision, Decisions, PairKey

        good("audit")(folder)
        decisions = Decisions(folder / "audit")
        for row, decision in enumerate((Decision("keep"), Decision("drop"), Decision("edit", "a new caption"))):
            pair = PairKey(f"p{row}", f"{row}.png", "a wrong caption" if row < 2 else f"caption {row}")
            decisions.decide(pair, row, decision, client="a")
        decisions.close()
        change(folder / "audit" / "decisions.sqlite")

    return prepare


def _decisions() -> Iterator[Case]:
    """Never silently left out: a database that cannot be read ends the export and the next audit."""
    unreadable = r"the decisions in audit/decisions\.sqlite cannot be read .*; move the file away to go on without them"
    action, text = "UPDATE decisions SET action = {}", "UPDATE decisions SET action = 'edit', text = {}"
    changes: dict[str, tuple[Change, str]] = {
        "text": (write("x" * 5000), unreadable), "binary": (BINARY, unreadable), "a folder": (a_folder, unreadable),
        "magic alone": (write("SQLite format 3\0"), unreadable), "cut": (cut, unreadable),
        "first byte flipped": (flip(0), unreadable), "byte 100 flipped": (flip(100), unreadable),
        "a byte of a page flipped": (flip(4100), unreadable), "a link": (_link, "is a link, so decisions would be"),
        "of a newer version": (_sql("PRAGMA user_version = 99"), "was written by a newer version of sremkit"),
        "without decisions": (_sql("DROP TABLE decisions"), unreadable),
        "without changes": (_sql("DROP TABLE changes"), unreadable),
        "other columns": (_sql("DROP TABLE decisions", "CREATE TABLE decisions (a, b)"), unreadable),
        "a view": (_sql("DROP TABLE decisions", "CREATE VIEW decisions AS SELECT 1 AS pair"), unreadable),
        "a trigger": (_sql("CREATE TRIGGER t AFTER INSERT ON changes BEGIN DELETE FROM decisions; END"), unreadable),
        "an unknown action": (_sql(action.format("'zz'")), unreadable),
        "an action of bytes": (_sql(action.format("x'ff00'")), unreadable),
        "an action of 3": (_sql(action.format("3")), unreadable),
        "a caption of bytes": (_sql(text.format("x'ff00'")), unreadable),
        "no new caption": (_sql(text.format("NULL")), unreadable),
        "a caption that is not UTF-8": (_sql(text.format("CAST(x'ff' AS TEXT)")), unreadable),
        "a caption with a surrogate": (_sql(text.format("CAST(x'eda080' AS TEXT)")), unreadable),
        "a pair of null": (_sql("UPDATE decisions SET pair = NULL"), unreadable),
    }  # fmt: skip
    for name, (change, says) in changes.items():
        for command in (("export", "audit", "-o", "keep.txt"), (*AUDIT, "-o", "audit"),
                        ("review", "audit", "--port", "0", "--no-browser")):  # fmt: skip
            yield Case(f"decisions: {name}", command, says, _reviewed(change))
    export = ("export", "audit", "-o", "keep.txt")
    for name, change in {"empty": empty, "missing": missing}.items():
        yield Case(f"decisions: {name}", export, "written to|keep.txt", _reviewed(change), 0)


def _scores() -> Iterator[Case]:
    """`srem score` with the models of an audit."""
    command = ("score", "audit", "--image-emb", "x2.npy", "--text-emb", "y2.npy", "-o", "scored.csv")
    for key, value in (("threshold", "x"), ("threshold", None), ("threshold", []), ("encoder", 3), ("settings", None),
                       ("settings", "x"), ("key", 3), ("noise_rate", 3), ("source", [])):  # fmt: skip
        says = rf"summary\.json is damaged: '{key}' is"
        prepare = damaged("vectors", "audit/summary.json", set_key(key, value))
        yield Case(f"score: {key} = {value!r}", command, says, prepare)
    for name, change in TEXTS.items():
        says = "holds no finished audit" if name in ("missing", "a folder") else "summary.json"
        yield Case(f"score: summary.json: {name}", command, says, damaged("vectors", "audit/summary.json", change))
    for value in ("../../x", "nowhere"):
        prepare = damaged("vectors", "audit/summary.json", set_key("key", value))
        yield Case(f"score: key = {value}", command, "kept no models", prepare)
    models, of_fold = "a model of the audit is damaged .*; audit the pairs again", "audit/folds/*/model-2"
    scorer = "audit/folds/*/scorer"
    for file in ("facts.json", "tensors.safetensors"):
        for name, change in {"cut": cut, "empty": empty, "missing": missing, "byte flipped": flip(60)}.items():
            for folder in (of_fold, scorer):
                yield Case(f"score: {folder[14:]}/{file}: {name}", command, models,
                           damaged("vectors", f"{folder}/{file}", change))  # fmt: skip
    for name, change in {"missing": missing, "no tensors": other_tensors(lambda tensors: tensors.clear())}.items():
        yield Case(f"score: model of a fold: {name}", command, models, damaged("vectors", of_fold, change))
    for key, value in (("names", 3), ("settings", "x"), ("known_keys", []), ("share", 3), ("folds", "x")):
        change = without_checksum(lambda facts, key=key, value=value: facts.update({key: value}))
        yield Case(f"score: scorer: {key} = {value!r}", command, models, damaged("vectors", scorer, change))
    for name in ("noise_rate", "settings", "names"):
        change = without_checksum(lambda facts, name=name: facts.pop(name))
        yield Case(f"score: scorer without {name}", command, models, damaged("vectors", scorer, change))
    wide = damaged("vectors", "x2.npy", npy(np.ones((20, 5), np.float32)))
    yield Case("score: other vectors", command, "have 5 numbers, those of the audit 8", wide)
    nan = damaged("vectors", "x2.npy", npy(np.full((20, 8), np.nan, np.float32)))
    yield Case("score: NaN everywhere", command, "none of the 20 pairs can be scored", nan)
    for out, says in {"o.txt": "must end in", "": "must end in", "y.npy/o.csv": "exists|Not a directory",
                      "x" * 300 + ".csv": "File name too long", "audit/pairs.parquet": "exists already",
                      }.items():  # fmt: skip
        yield Case(f"score: to {out[:20]!r}", (*command[:-1], out), says, good("vectors"))
    for value in ("257", "1.5", "1e3", "9" * 5000):
        yield Case(f"score: --workers {value[:5]}", (*command, "--workers", value), "whole number", good("vectors"))


def _indexes() -> Iterator[Case]:
    """The search index; any change of a byte is noticed, and the remedy is to build it again."""
    search = ("search", "run", "a red square", "-k", "2")
    facts, again = "run/index/index.json", "index again with `srem index run`"
    changes = {**TEXTS, "without images": drop_key("images"), "without candidates": drop_key("candidates"),
               "images = 3": set_key("images", 3), "images.count = 5": set_key("images.count", 5),
               "images.kind = ivf": set_key("images.kind", "ivf"), "candidates = x": set_key("candidates", "x"),
               "data = []": set_key("data", []), "data.split = x": set_key("data.split", "x"),
               "data.source": set_key("data.source", "../x"), "version = 99": set_key("version", 99)}  # fmt: skip
    for name, change in changes.items():
        if name not in ("missing", "a folder"):
            yield Case(f"index.json: {name}", search, again, damaged("index", facts, change))
    yield Case("index.json: missing", search, "exact search", damaged("index", facts, missing), 0)
    vectors = np.zeros((12, 8), np.float32)
    arrays = {"cut": cut, "empty": empty, "text": write("x"), "last byte flipped": flip(-1),
              "NaN": npy(vectors * np.nan), "float64": npy(vectors.astype("f8")), "strings": npy(np.array(["a"] * 12)),
              "no columns": npy(vectors[:, 0]), "fewer rows": npy(vectors[:5]),
              "dates": npy(np.zeros((12, 8), "M8[s]"))}  # fmt: skip
    for name, change in arrays.items():
        says = "was changed after it was written; build it again with `srem index`"
        yield Case(f"index: images.npy: {name}", search, says, damaged("index", "run/index/images.npy", change))
    for name, change in {"missing": missing, "a folder": a_folder}.items():
        says = r"images\.npy cannot be read .*; build it again"
        yield Case(f"index: images.npy: {name}", search, says, damaged("index", "run/index/images.npy", change))
    for query, says in (([""], "the text is empty"), ([" \n"], "the text is empty"), ([], "give either a text"),
                        (["a", "--image", "x.png"], "give either a text"), (["--image", "nowhere"], "does not exist"),
                        (["--image", "features"], "does not exist"), (["--image", "run"], "cannot be decoded|Is a dir"),
                        (["a", "-k", "0"], "-k must be"), (["a", "-k", "1001"], "-k must be"),
                        (["--image", "run/config.toml"], "it is none of JPEG")):  # fmt: skip
        yield Case(f"search {query}", ("search", "run", *query), says, good("index"))


def _reused(path: str = "audit/features/*") -> Iterator[Case]:
    """`--reuse` and features of earlier inputs: damaged ones are told and computed again."""
    command = (*AUDIT, "-o", "again", "--reuse", "audit")
    told, silent = "are damaged .*, so they are not reused.*scored pairs", "scored pairs are flagged"
    pooled = np.zeros((4, 3), np.float16)
    arrays = {"cut": cut, "empty": empty, "text": write("x"), "fewer rows": npy(pooled[:1]), "wider":
              npy(np.zeros((4, 9), np.float16)), "complex": npy(pooled.astype("c8")), "a number":
              npy(np.float32(3)), "objects": npy(np.array([{}] * 4, dtype=object)), "missing": missing}  # fmt: skip
    for name, change in arrays.items():
        yield Case(f"reuse: pooled.npy: {name}", command, told, damaged("audit", f"{path}/pooled.npy", change), 0)
    for name, change in {"not UTF-8": write(b"\xff\n"), "binary": BINARY, "empty": empty, "more lines": each(
        lambda file: file.write_text(file.read_text() * 3)
    )}.items():  # fmt: skip
        prepare = damaged("audit", f"{path}/image_contents.txt", change)
        yield Case(f"reuse: image_contents.txt: {name}", command, told, prepare, 0)
    for key, value in (("arrays.pooled", None), ("arrays.pooled", "x"), ("arrays.pooled.shape", 3)):
        prepare = damaged("audit", f"{path}/features.json", set_key(key, value))
        yield Case(f"reuse: {key} = {value!r}", command, told, prepare, 0)
    for key, value in (("version", 99), ("arrays", 3), ("arrays.pooled.encoder", "x"), ("arrays.pooled.shape", [4, 9])):
        prepare = damaged("audit", f"{path}/features.json", set_key(key, value))
        yield Case(f"reuse: {key} = {value!r}", command, silent, prepare, 0)
    for folder in ("nowhere", "pairs.csv", "."):
        yield Case(f"reuse: {folder}", (*command[:-1], folder), "holds no finished features", good("audit"))


def _trackers() -> Iterator[Case]:
    """What trackers left in a run, and trackers that do not exist."""
    resume = ("train", "--resume", "run")
    for name, content in {"a list": [], "null": None, "an unknown one": {"zz": {}}}.items():
        prepare = damaged("stopped", "run/tracking.json", write(json.dumps(content)))
        yield Case(f"tracking.json: {name}", resume, "epoch 3/3", prepare, 0)
    for name in ("zz", "", "../x"):
        command = ("train", "features-dual-srem", "-o", "out", "--track", name, *settings("data.source=features"))
        yield Case(f"--track {name!r}", command, "there is no tracker", good("run"))

    def file_for_events(folder: Path) -> None:
        good("stopped")(folder)
        events = folder / "run" / "tensorboard"
        missing(events)
        events.write_text("x")

    yield Case("a file for the folder of TensorBoard", resume, "tensorboard|exists|Not a directory", file_for_events)
