"""Damaged run folders and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hostile.damage import (
    BINARY,
    HUGE_NUMBER,
    NESTED,
    NOT_UTF8,
    Change,
    a_folder,
    append,
    cut,
    drop_key,
    empty,
    flip,
    missing,
    other_tensors,
    replace,
    set_key,
    without_checksum,
    write,
)
from hostile.harness import Case, damaged, good

RESUME, EVAL, COMPARE = ("train", "--resume", "run"), ("eval", "run", "--split", "val"), ("compare", "run")
COMMANDS = (RESUME, EVAL, COMPARE)
TEXTS: dict[str, Change] = {
    "cut off": cut,
    "empty": empty,
    "a folder": a_folder,
    "not UTF-8": NOT_UTF8,
    "nested 100,000 deep": NESTED,
    "a number of 5,000 digits": HUGE_NUMBER,
    "binary": BINARY,
    "a list": write("[]\n"),
    "a number": write("1\n"),
    "null": write("null\n"),
}
BYTES: dict[str, Change] = {
    "cut off": cut,
    "empty": empty,
    "missing": missing,
    "a folder": a_folder,
    "longer by a byte": append(b"x"),
    "other text": write("not a checkpoint"),
    "first byte flipped": flip(0),
    "eighth byte flipped (length of the header)": flip(7),
    "byte 20 flipped (header)": flip(20),
    "byte 200 flipped": flip(200),
    "last byte flipped": flip(-2),
}


def cases() -> Iterator[Case]:
    yield from _records()
    yield from _metrics()
    yield from _configurations()
    yield from _versions()
    yield from _checkpoints()
    yield from _other_models()


def _records() -> Iterator[Case]:
    again = r"run/record\.json.*; `srem train --resume run` writes it again"
    noise = {"protocol": "caption", "rate": 0.0, "seed": 0, "hash": "f"}
    wrong: dict[str, Change] = {
        **TEXTS,
        "without noise": drop_key("noise"),
        "noise is a number": set_key("noise", 1),
        "noise without a rate": set_key("noise", {**noise, "rate": None}),
        "rate is text": set_key("noise", {**noise, "rate": "0.4"}),
        "hash is a number": set_key("noise", {**noise, "hash": 3}),
        "seconds are text": set_key("seconds", "long"),
        "seconds are a list": set_key("seconds", []),
        "memory is null": set_key("peak_memory_mb", None),
    }
    for name, change in wrong.items():
        for command in (EVAL, COMPARE):
            yield Case(f"record.json: {name}", command, again, damaged("run", "run/record.json", change))
        if name != "a folder":
            told = again + ".*seconds of earlier sessions are not counted.*epoch 3/3"
            prepare = damaged("stopped", "run/record.json", change)
            yield Case(f"record.json: {name}", RESUME, told, prepare, code=0)
    yield Case("record.json: a folder", RESUME, "Is a directory", damaged("stopped", "run/record.json", a_folder))
    for command, says in ((EVAL, "noise protocol unknown"), (COMPARE, r"466\.7"), (RESUME, "epoch 3/3")):
        kind = "stopped" if command is RESUME else "run"
        yield Case("record.json: missing", command, says, damaged(kind, "run/record.json", missing), code=0)


def _metrics() -> Iterator[Case]:
    left_out = r"run/metrics\.jsonl: line {} cannot be read and is left out; the other epochs are used"
    lines: dict[str, tuple[Change, int]] = {
        "not UTF-8": (NOT_UTF8, 1),
        "a number of 5,000 digits": (HUGE_NUMBER, 1),
        "a list": (write("[]\n"), 1),
        "null": (write("null\n"), 1),
        "epoch is text": (write('{"epoch": "one"}\n'), 1),
        "epoch is true": (write('{"epoch": true}\n'), 1),
        "epoch is missing": (write('{"loss": 1.0}\n'), 1),
        "a value is text": (write('{"epoch": 0, "val/rsum": "high"}\n'), 1),
        "a value is a table": (write('{"epoch": 0, "val/rsum": {}}\n'), 1),
        "second line damaged": (replace('{"step": 4', '{"step" 4'), 2),
        "nested": (write("[" * 100_000 + "\n"), 1),
        "binary": (write(bytes(range(1, 10)) + b"\xff\n"), 1),
    }
    for name, (change, line) in lines.items():
        says = left_out.format(line)
        yield Case(f"metrics.jsonl: {name}", COMPARE, says, damaged("run", "run/metrics.jsonl", change), code=0)
        told = says + ".*epoch 3/3"
        yield Case(f"metrics.jsonl: {name}", RESUME, told, damaged("stopped", "run/metrics.jsonl", change), code=0)
    for name, change in {"cut off": cut, "empty": empty, "missing": missing}.items():
        yield Case(f"metrics.jsonl: {name}", COMPARE, "best R_sum", damaged("run", "run/metrics.jsonl", change), code=0)
        prepare = damaged("stopped", "run/metrics.jsonl", change)
        yield Case(f"metrics.jsonl: {name}", RESUME, "epoch 3/3", prepare, code=0)
    for command in (COMPARE, RESUME):
        kind = "stopped" if command is RESUME else "run"
        says = r"run/metrics\.jsonl cannot be read \(Is a directory\)"
        yield Case("metrics.jsonl: a folder", command, says, damaged(kind, "run/metrics.jsonl", a_folder))


def _configurations() -> Iterator[Case]:
    cut_off = r"run/config\.toml has \d+ lines of \d+: it was cut off; copy the run again"
    texts = {
        "cut off": (cut, cut_off),
        "empty": (empty, cut_off),
        "missing": (missing, "run holds no run"),
        "a folder": (a_folder, r"run/config\.toml.*(Is a directory|cannot be read)"),
        "not UTF-8": (append(b"\xff\n"), "not valid TOML"),
        "a second table": (append(b"[data]\n"), "not valid TOML"),
        "nested": (append(b"x = " + b"[" * 100_000), "not valid TOML"),
        "a number of 5,000 digits": (append(b"x = " + b"9" * 5000 + b"\n"), "not valid TOML"),
    }
    for name, (change, says) in texts.items():
        for command in COMMANDS:
            yield Case(f"config.toml: {name}", command, says, damaged("run", "run/config.toml", change))
    values = {
        "an unknown setting": (append(b"zz = 3\n"), "there is no setting 'training.zz'"),
        "an unknown table": (append(b"[zz]\n"), "there is no setting 'zz'"),
        "epochs as text": (replace("\nepochs = 1", '\nepochs = "1"'), "'training.epochs' must be a whole number"),
        "epochs of 10^20": (replace("\nepochs = 1", "\nepochs = 100000000000000000000"), "must be"),
        "another model": (replace('name = "dual"', 'name = "zz"'), "zz"),
        "data that is gone": (
            replace("/features", "/elsewhere"),
            "elsewhere holds no features.json; make it with `srem features`",
        ),
    }
    for name, (change, says) in values.items():
        for command in (RESUME, EVAL) if name != "another model" else (RESUME,):
            yield Case(f"config.toml: {name}", command, says, damaged("run", "run/config.toml", change))


def _versions() -> Iterator[Case]:
    newer = r"was written by a newer version of sremkit \(its version is 99, .* pip install -U sremkit"
    for command in COMMANDS:
        yield Case("run.json: newer", command, newer, damaged("run", "run/run.json", set_key("version", 99)))
        for value in (0, -1, 1.5, "two", [], True):
            change = set_key("version", value)
            yield Case(
                f"run.json: {value!r}", command, "is damaged: its version", damaged("run", "run/run.json", change)
            )
        for name, change in TEXTS.items():
            yield Case(f"run.json: {name}", command, r"run/run\.json", damaged("run", "run/run.json", change))
    for kind, command, file in (("run", EVAL, "best"), ("stopped", RESUME, "step")):
        facts = f"run/checkpoints/{file}-*/facts.json"
        yield Case(f"{file}: newer", command, newer, damaged(kind, facts, set_key("version", 99)))
        for value in (0, "two", None):
            damage = "was changed after it was written|is damaged: its version"
            code = 0 if value is None else 2
            yield Case(
                f"{file}: {value!r}", command, damage, damaged(kind, facts, set_key("version", value)), code=code
            )


def _checkpoints() -> Iterator[Case]:
    instead = "so the model of the last checkpoint is used instead of the best one"
    for file in ("tensors.safetensors", "facts.json"):
        for name, change in BYTES.items():
            step = damaged("stopped", f"run/checkpoints/step-*/{file}", change)
            used = r"step-00000004 is damaged \(.*\); step-00000002 is used instead.*epoch 3/3"
            yield Case(f"newest checkpoint, {file}: {name}", RESUME, used, step, code=0)
            best = damaged("run", f"run/checkpoints/best-*/{file}", change)
            yield Case(f"best model, {file}: {name}", EVAL, rf"is damaged \(.*\), {instead}", best, code=0)

            def all_of_them(folder: Any, file: str = file, change: Change = change) -> None:
                good("run")(folder)
                for path in folder.glob(f"run/checkpoints/*/{file}"):
                    change(path)

            none = r"step-00000004 is damaged \(.*\); .*step-00000002 is damaged .*; copy the run again"
            for command in (RESUME, EVAL):
                yield Case(f"all checkpoints, {file}: {name}", command, none, all_of_them)
    for command in (RESUME, EVAL):
        says = "holds no model yet" if command is EVAL else "epoch 1/2"
        prepare = damaged("run", "run/checkpoints", missing)
        yield Case("no checkpoints", command, says, prepare, code=2 if command is EVAL else 0)


def _other_models() -> Iterator[Case]:
    says = "the checkpoint in run/checkpoints does not fit this run .* copy the run again"

    def rename(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.startswith("model/")]:
            tensors[f"{name}x"] = tensors.pop(name)

    def widen(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.startswith("model/")]:
            tensors[name] = tensors[name].new_zeros(7, 7)

    models: dict[str, Change] = {
        "no model": without_checksum(lambda facts: facts.pop("model")),
        "model is a number": without_checksum(lambda facts: facts.update(model=3)),
        "another backbone": without_checksum(lambda facts: facts["model"].update(name="sgr")),
        "an unknown backbone": without_checksum(lambda facts: facts["model"].update(name="zz")),
        "other sizes": without_checksum(lambda facts: facts["model"]["options"].update(embed_size=3)),
        "an unknown option": without_checksum(lambda facts: facts["model"]["options"].update(zz=3)),
        "a size of 10^12": without_checksum(lambda facts: facts["model"]["options"].update(embed_size=10**12)),
        "a negative size": without_checksum(lambda facts: facts["model"]["options"].update(embed_size=-3)),
        "no vocabulary": without_checksum(lambda facts: facts.pop("vocabulary")),
        "vocabulary is a number": without_checksum(lambda facts: facts.update(vocabulary=3)),
        "other tensor names": other_tensors(rename),
        "other tensor shapes": other_tensors(widen),
        "no tensors": other_tensors(lambda tensors: tensors.clear()),
    }
    for name, change in models.items():
        yield Case(f"best model: {name}", EVAL, says, damaged("run", "run/checkpoints/best-*", change))
    states: dict[str, Change] = {
        "other tensor names": other_tensors(rename),
        "other tensor shapes": other_tensors(widen),
        "no tensors": other_tensors(lambda tensors: tensors.clear()),
        "no position": without_checksum(lambda facts: facts.pop("position")),
        "position is a list": without_checksum(lambda facts: facts.update(position=[])),
        "an unknown key": without_checksum(lambda facts: facts["position"].update(zz=1)),
        "epoch is text": without_checksum(lambda facts: facts["position"].update(epoch="a")),
        "epoch below 0": without_checksum(lambda facts: facts["position"].update(epoch=-5)),
        "epoch of 10^30": without_checksum(lambda facts: facts["position"].update(epoch=10**30)),
        "a step of 10^6": without_checksum(lambda facts: facts["position"].update(step_in_epoch=10**6)),
        "score is text": without_checksum(lambda facts: facts["position"].update(best_score="x")),
        "sums are a number": without_checksum(lambda facts: facts["position"].update(sums=4)),
    }
    for name, change in states.items():
        yield Case(f"checkpoint: {name}", RESUME, says, damaged("stopped", "run/checkpoints/step-*", change))
