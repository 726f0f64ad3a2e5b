"""Commands beside training and audits: bench, compare, describe, noise, export, and recipes of users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hostile.damage import append, replace, set_key, write
from hostile.harness import Case, damaged, good, settings

HEADER = "data,backbone,method,rate,seed,key,test_rsum,epochs\n"
ROW = "scenes,sgr,srem,0.2,0,f00d,300.5,3\n"
SMALL = settings("data.train_options.num_scenes=2", "data.options.num_scenes=2")


def cases() -> Iterator[Case]:
    yield from _tables()
    yield from _bench()
    yield from _recipes()
    yield from _described()
    yield from _compared()
    yield from _noise()
    yield from _exports()


def _file(name: str, content: bytes | str) -> Callable[[Path], object]:
    raw = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(raw)


def _tables() -> Iterator[Case]:
    """Finished rows that `srem bench` reads again."""
    contents: dict[str, tuple[bytes | str, str]] = {
        "empty": ("", "rows.csv has no rows"),
        "a header alone": (HEADER, "rows.csv has no rows"),
        "NUL bytes": (b"\0" * 100, "has no rows|cannot be read as CSV|has no data"),
        "not UTF-8": (b"\xff\xfe\n1\n", "cannot be read as CSV"),
        "binary": (bytes(range(256)), "cannot be read as CSV"),
        "other columns": ("a,b\n1,2\n", "line 2 has no data; a table of `srem bench methods` has"),
        "a row that is cut off": (HEADER + "scenes,sgr\n", "line 2 has no method"),
        "a second row that is cut off": (HEADER + ROW + "scenes,sgr\n", "line 3 has no method"),
        "a field too many": (HEADER + ROW.strip() + ",x\n", "line 2 has more fields than the header"),
        "a field of 200,000 letters": (HEADER + "s" * 200_000 + ROW, "cannot be read as CSV"),
        "a rate that is text": (HEADER + ROW.replace("0.2", "some"), "line 2: rate must be a number, got 'some'"),
        "a rate of 2": (HEADER + ROW.replace("0.2", "2"), "line 2: rate must lie between 0 and 1, got 2"),
        "a rate of NaN": (HEADER + ROW.replace("0.2", "nan"), "line 2: rate must lie between 0 and 1, got nan"),
        "a seed that is text": (HEADER + ROW.replace(",0,", ",x,"), "line 2: seed must be a number, got 'x'"),
        "a recall that is text": (HEADER + ROW.replace("300.5", "high"), "line 2: test_rsum must be a number"),
        "epochs that are text": (HEADER + ROW.replace(",3\n", ",many\n"), "line 2: epochs must be a number"),
    }
    for name, (content, says) in contents.items():
        prepare = _file("rows.csv", content)
        yield Case(f"rows: {name}", ("bench", "methods", "--from", "rows.csv"), says, prepare)
        yield Case(f"rows: {name}", ("bench", "figures", "curves", "--from", "rows.csv"), says, prepare)
    for name, row in {
        "infinite": ROW.replace("300.5", "1e999"),
        "a seed of 5,000 digits": ROW.replace(",0,", f",{'9' * 5000},"),
        "an unknown method": ROW.replace("srem", "zz"),
        "a formula": ROW.replace("srem", "=1+1"),
    }.items():
        prepare = _file("rows.csv", HEADER + row)
        yield Case(f"rows: {name}", ("bench", "methods", "--from", "rows.csv"), "R_sum", prepare, 0)
    figures = ("bench", "figures", "cost", "--from", "rows.csv")
    yield Case("rows: none", figures, "rows.csv does not exist; `srem bench methods -o rows.csv` makes it")
    yield Case("rows: no cells", figures, "rows.cells/f00d.json is missing", _file("rows.csv", HEADER + ROW))
    keyless = _file("rows.csv", HEADER + ROW.replace("f00d", ""))
    yield Case("rows: no key", figures, "line 2 has no key", keyless)
    table = ("bench", "methods", "--from", "rows.csv", "--table", "x.zz")
    yield Case("a table of another kind", table, "ends in '.zz'", _file("rows.csv", HEADER + ROW))


def _bench() -> Iterator[Case]:
    methods = ("bench", "methods", "--data", "scenes", "--methods", "srem", "--seeds", "1")
    for rates in ("x", "", ",", "0.2,,0.4", "0.2;0.4", "-1", "2", "nan", "inf", "1e400"):
        says = "--noise takes comma-separated rates from 0 to 1"
        yield Case(f"--noise {rates!r}", (*methods, f"--noise={rates}"), says)
        yield Case(f"audit --noise {rates!r}", ("bench", "audit", "--data", "scenes", f"--noise={rates}"), says)
    for data in ("", "zz", ":/x"):
        command = ("bench", "methods", "--data", data, "--methods", "srem", "--noise", "0.2")
        yield Case(f"--data {data!r}", command, f"there are no data called '{data.split(':')[0]}' with recipes")
    for folder in (".", "out", ".."):
        says = "is a folder; name a CSV file"
        command = (*methods, "--noise", "0.2", "-o", folder)
        yield Case(f"-o {folder}", command, says, lambda here: (here / "out").mkdir())
    audit = ("bench", "audit", "--data", "scenes", "--seeds", "1")
    for sizes in ("x", "0", "-5", "9" * 5000, "1.5", "1e3", "400,,500"):
        yield Case(f"--sizes {sizes[:20]}", (*audit, f"--sizes={sizes}"), "--sizes takes comma-separated numbers")
    for option, says in {"--kinds": "the kinds of wrong captions are", "--detectors": "is no detector of the bench",
                         "--again": "--again: 'zz' is none of", "--data": "'zz' is none of"}.items():  # fmt: skip
        yield Case(f"{option} zz", (*audit, option, "zz"), says)
    for precision in ("0", "-1", "2", "nan", "inf"):
        yield Case(f"--precision {precision}", (*audit, f"--precision={precision}"), "--precision must lie above 0")
    for recipe in ("", "zz", "../x", "."):
        yield Case(f"ablation of {recipe!r}", ("bench", "ablation", "--recipe", recipe), "recipe")
        yield Case(f"energies of {recipe!r}", ("bench", "figures", "energies", "--recipe", recipe), "recipe")
    infonce = ("bench", "ablation", "--recipe", "scenes-infonce", "--seeds", "1")
    yield Case("ablation of another method", infonce, "there is no setting 'method.filtration'")
    truth = ("bench", "audit", "--data", "rows.csv", "--truth", "wrong", "--image", "image", "--text", "caption")
    for content, says in {"": "is empty; its first line must name the columns",
                          "id,file\n": "has no column 'image'"}.items():  # fmt: skip
        yield Case(f"a table {content!r} with truth", truth, says, _file("rows.csv", content))


def _recipes() -> Iterator[Case]:
    recipe = 'name = "x"\n[data]\nsource = "scenes"\n[model]\nname = "dual"\n[method]\nname = "srem"\n'
    show = ("train", "r.toml", "--print-config")
    invalid = "r.toml is not valid TOML"
    contents: dict[str, tuple[bytes | str, str]] = {
        "empty": ("", "the recipe is incomplete: add the table"),
        "one table": ('[data]\nsource = "scenes"\n', "the recipe is incomplete: add the table"),
        "NUL bytes": (b"\0" * 9, invalid),
        "not UTF-8": (b"\xff", invalid),
        "a byte-order mark": (b"\xef\xbb\xbf" + recipe.encode(), invalid),
        "nested 100,000 deep": ("x = " + "[" * 100_000, invalid),
        "a number of 5,000 digits": (recipe + "threshold = " + "9" * 5000, invalid),
        "a name that is a number": (recipe.replace('"x"', "3"), "'name' must be a string, got 3"),
        "a source that is a number": (recipe.replace('"scenes"', "3"), "'data.source' must be a string"),
        "a model name that is a list": (recipe.replace('"dual"', '["dual"]'), r"the table \[model\] needs a name"),
        "an array of tables": (recipe.replace("[method]", "[[method]]"), "'method' must be a table"),
        "a date": (recipe + "threshold = 2026-01-01\n", "'method.threshold' is the date or time 2026-01-01"),
        "a time in a list": (recipe + "x = [07:32:00]\n", "'method.x' is the date or time 07:32:00"),
        "trials that are text": (recipe + '[provenance]\ntrials = "x"\n', "'provenance.trials' must be a whole"),
        "trials below 0": (recipe + "[provenance]\ntrials = -1\n", "'provenance.trials' must be at least 0"),
    }
    for name, (content, says) in contents.items():
        yield Case(f"recipe: {name}", show, says, _file("r.toml", content))
    yield Case("recipe: a folder", show, "Is a directory", lambda folder: (folder / "r.toml").mkdir())
    loop = lambda folder: (folder / "r.toml").symlink_to("r.toml")  # noqa: E731
    yield Case("recipe: a link to itself", show, "Too many levels of symbolic links", loop)
    for name in ("", "zz", "../x", "/dev/zero", ".", "a" * 10_000):
        yield Case(f"recipe {name[:20]!r}", ("train", name, "--print-config"), "there is no recipe|known|did you mean")
    date = (*show, "--set", "method.threshold=2026-01-01")
    yield Case("--set to a date", date, "'method.threshold' is the date or time", _file("r.toml", recipe))
    for name in ("scenes-npc", "scenes-gsc", "scenes-in2r", "scenes-crcl", "scenes-l2rm", "scenes-decl"):
        for setting in ("zz=1", "zz=2026-01-01", "name=3"):
            says = "there is no setting 'method.zz'|is the date or time|needs a name"
            command = ("train", name, "-o", "out", *SMALL, "--set", f"method.{setting}")
            yield Case(f"{name} with {setting}", command, says)
    for setting in ("min_crop_area=0", "min_crop_area=-1", "min_crop_area=2", "flip=2", "flip=-1", "flip=nan"):
        command = ("train", "scenes-pixels-srem", "-o", "out", *SMALL, "--set", f"training.{setting}")
        yield Case(f"scenes-pixels-srem with {setting}", command, f"'training.{setting.split('=')[0]}' must be")


def _described() -> Iterator[Case]:
    for name in ("", "zz", "../x", "/dev/null", ".", "training.epochs", "srem srem", "😀", "a" * 10_000, "[method]"):
        says = "there is no method, backbone, format, recipe or settings table called"
        yield Case(f"describe {name[:20]!r}", ("describe", name), says)


def _compared() -> Iterator[Case]:
    for path in ("nowhere", ".", "/dev/null", "run/config.toml", "run/checkpoints", "run/best.safetensors"):
        yield Case(f"compare {path}", ("compare", "run", path), "holds no run", good("run"))
    values = {"inf": "1e999", "nan": "NaN", "10^308": "1e308", "true": "true", "-5": "-5"}
    for name, value in values.items():
        change = write(f'{{"epoch": 0, "val/rsum": {value}}}\n')
        prepare = damaged("run", "run/metrics.jsonl", change)
        yield Case(f"metrics.jsonl: recall of {name}", ("compare", "run"), "best R_sum", prepare, 0)
    for value in (-5, 1e300):
        prepare = damaged("run", "run/record.json", set_key("seconds", value))
        yield Case(f"record.json: {value} seconds", ("compare", "run"), "best R_sum", prepare, 0)
    lists = damaged("run", "run/config.toml", replace("[training]", "[[training]]"))
    yield Case("config.toml: a list of tables", ("compare", "run"), "best R_sum", lists, 0)
    twice = damaged("run", "run/config.toml", append(b"clip = 1.0\nclip = 2.0\n"))
    yield Case("config.toml: a key twice", ("compare", "run"), "is not valid TOML", twice)


def _array(values: object) -> Callable[[Path], object]:
    return lambda folder: np.save(folder / "n.npy", values, allow_pickle=True)  # type: ignore[arg-type]


def _noise() -> Iterator[Case]:
    whole = "must be one list of whole numbers"
    arrays: dict[str, tuple[object, str]] = {
        "empty": (np.zeros(0, int), "n.npy is empty"),
        "two axes": (np.zeros((3, 3), int), whole),
        "one number": (np.array(3), whole),
        "fractions": (np.arange(10.0) / 2, whole),
        "true and false": (np.array([True, False]), whole),
        "below 0": (np.array([-5, 1, 2]), "holds the image number -5; images are counted from 0"),
        "2^62": (np.array([2**62, 0]), "holds the image number 4611686018427387904; 1,000,000,000 images"),
        "2^63 + 1": (np.array([2**63 + 1, 0], dtype=np.uint64), "holds the image number 9223372036854775809"),
        "strings": (np.array(["a", "b"]), "numbers are expected"),
        "complex": (np.array([1j, 2]), "numbers are expected"),
        "records": (np.zeros(3, dtype=[("a", int)]), "numbers are expected"),
        "objects": (np.array([{}, 1], dtype=object), "is not a readable .npy file"),
    }
    train = ("train", "scenes-srem", "-o", "out", *SMALL, "--set", "noise.file=n.npy")
    for name, (values, says) in arrays.items():
        yield Case(f"index: {name}", ("noise", "inspect", "n.npy"), says, _array(values))
        yield Case(f"index: {name}", train, says, _array(values))
    pairs = _array(np.array([[0, 1], [5, 9]]))
    yield Case("index: pairs", ("noise", "inspect", "n.npy"), "holds pairs .* give image_of_text", pairs)
    yield Case("index: pairs of other data", train, "is it the index of another dataset or split", pairs)
    yield Case("index: too short", train, "is it the index of another dataset", _array(np.zeros(5, int)))
    make = ("noise", "make", "--images", "5", "-o")
    for out, says in {".": "exists already", "/dev/null": "exists already", "n.txt": "is written as a .npy file",
                      "/proc/x.npy": "name another file or folder",
                      "a" * 300 + ".npy": "File name too long"}.items():  # fmt: skip
        yield Case(f"noise to {out[:20]}", (*make, out), says)
    for protocol in ("near", "shared-word", "one-word"):
        says = "reads the captions; give the pairs|compares sentence vectors"
        yield Case(f"{protocol} without pairs", (*make, "n.npy", "--protocol", protocol), says)


def _exports() -> Iterator[Case]:
    for out, says in {"": "exists already", "pairs.csv": "exists already", "audit": "exists already",
                      "audit/pairs.parquet": "exists already", "/proc/x.csv": "name another file or folder",
                      "a" * 300 + ".csv": "File name too long", "x.npy": "have no DataComp uids"}.items():  # fmt: skip
        yield Case(f"export to {out[:20]!r}", ("export", "audit", "-o", out), says, good("audit"))
    for options, says in {("--format", "shards"): "only pairs from tar shards can be written as tar shards",
                          ("--split", "zz"): "there is nothing to write: there is no pair to keep",
                          ("--select", "drop", "--threshold", "0"): "there is no pair to drop",
                          ("--precision", "0.9", "--fraction", "0.5"): "not allowed with"}.items():  # fmt: skip
        command = ("export", "audit", "-o", "x.csv", *options)
        yield Case(f"export {' '.join(options)}", command, says, good("audit"))
