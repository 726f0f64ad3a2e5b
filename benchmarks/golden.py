"""Frozen results: tells whether a change of the code has changed any number that it computes.

    python benchmarks/golden.py write DIR                    # with the code before the change
    python benchmarks/golden.py check DIR                    # with the code after it
    python benchmarks/golden.py check DIR --only 'audit/*'   # some of the cases

Every method and every backbone is trained for some eighty steps, and pictures and vectors are audited, always by the
command line (`python -m sremkit ...`), so that names inside the package may change. Which code runs is decided by
PYTHONPATH and printed first. `write` keeps the weights, the metrics and the verdicts in DIR, and also what the audits
read, because whatever made that may change as well; for this it needs Flickr8k at $SREMKIT_DATA/flickr8k. `check` needs
DIR alone. It prints a line for each case and ends with 1 if any is not equal.

Only one thread computes, so that results are the same in each run. They are not the same with another PyTorch or on
another kind of processor: write and check on one machine.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

Result = dict[str, np.ndarray]  # what a case came to: weights/..., metrics/..., columns/... and noise_rate/...

# So little to learn that after the warm-up SREM selects some of the pairs; the last batch of an epoch is short.
COMMON = """
noise.rate = 0.4
method.name = "srem"
training = { warmup_epochs = 8, epochs = 3, batch_size = 16, learning_rate = 5e-3, threads = 1, device = "cpu", \
adaptive_warmup = false }
"""
SCENES = f"""{COMMON}
data = {{ source = "scenes", options = {{ num_scenes = 21 }} }}
model = {{ name = "vse-infty", embed_size = 64, word_dim = 32 }}
"""
DUAL = f"""{COMMON}
data.source = "INPUT/small/pairs.csv"
data.options = {{ image_features = "INPUT/small/images.npy", text_features = "INPUT/small/texts.npy" }}
data.words = false
model = {{ name = "dual", hidden_size = 64, embed_size = 32 }}
"""
PLUS = "method.name=srem-plus method.least_resemblance=0.0 method.least_separation=0.5"
MSCN = "method.name=mscn data.trusted_images=4"
SIZES = "model.embed_size=64 model.word_dim=32"  # a new model name drops the other model's options
RATE = "training.learning_rate=2e-3"
LOGIT = "method.similarity=logit method.margin=2.0"
TRAININGS = {  # what each sets anew in SCENES, or in DUAL if it is named so
    "method/srem": "",
    "method/srem-plus": PLUS,
    "method/srem-plus-rematching": f"{PLUS} method.rematch_among=8 method.belief_power=4.0",
    "method/srem-plus-warmup-power": f"{PLUS} method.warmup_power=0.7",
    "method/hinge": f"method.name=hinge {LOGIT}",
    "method/hinge-sigmoid": "method.name=hinge",
    "method/hinge-mean": f"method.name=hinge-mean {LOGIT}",
    "method/infonce": "method.name=infonce",
    "method/rcl": "method.name=rcl method.similarity=logit method.temperature=1.0",
    "method/decl": "method.name=decl model.scale=2.0",
    "method/ncr": "method.name=ncr",
    "method/ncr-noisy": f"method.name=ncr method.noisy_after=1 {LOGIT}",
    "method/bicro": "method.name=bicro",
    "method/bicro-normal": f"method.name=bicro method.mixture=normal {LOGIT}",
    "method/mscn": MSCN,
    "method/mscn-mean": f"{MSCN} method.negatives=mean method.meta_interval=2 {LOGIT}",
    "method/crcl": "method.name=crcl method.temperature=0.5 method.restarts=1 method.restart_epochs=1",
    "method/gsc": "method.name=gsc method.structure_weight=1.0",
    "method/in2r": "method.name=in2r method.num_neighbours=2",
    "method/l2rm": f"method.name=l2rm {LOGIT} method.temperature=1.0 method.cost_scale=10.0 method.cost_rate=1e-2",
    "method/l2rm-normal": "method.name=l2rm method.mixture=normal method.mask_repeated_images=false",
    "method/npc": "method.name=npc method.memory_every=2",
    "training/repeated-images": "method.name=decl method.mask_repeated_images=false model.scale=2.0",
    "training/averaged": "training.average=0.9",
    "training/order": "training.unique_images=true training.bucket_by_length=true",
    "training/image-noise": "noise.protocol=image training.drop_last=true",
    "training/bf16": "training.precision=bf16 training.full_precision_steps=10",
    "backbone/scan-t2i": f"model.name=scan-t2i {SIZES}",
    "backbone/scan-i2t": f"model.name=scan-i2t {SIZES} {RATE}",
    "backbone/imram": f"model.name=imram {SIZES}",
    "backbone/vsrn": f"model.name=vsrn {SIZES} model.caption_size=32 model.caption_weight=0.05 {RATE}",
    "backbone/sgr": f"model.name=sgr {SIZES} model.sim_dim=32",
    "backbone/saf": f"model.name=saf {SIZES} model.sim_dim=32",
    "backbone/sgraf": f"model.name=sgraf {SIZES} model.sim_dim=32",
    "backbone/sgr-infonce": f"model.name=sgr {SIZES} model.sim_dim=32 method.name=infonce",
    "backbone/saf-ncr": f"model.name=saf {SIZES} model.sim_dim=32 method.name=ncr",
    "dual/srem": "",
    "dual/srem-micro-batch": "training.micro_batch=8",
    "dual/infonce-averaged": "method.name=infonce training.average=0.9",
    "dual/ncr": "method.name=ncr",
}
VECTORS = "--image-emb INPUT/vectors/images.npy --text-emb INPUT/vectors/texts.npy"
PARTS = "--image-emb INPUT/vectors/images --text-emb INPUT/vectors/texts"
PICTURES = "--image-root INPUT/scenes/pictures"
AUDITS = {
    "audit/scenes": f"INPUT/scenes/pairs.csv {PICTURES}",
    "audit/scenes-by-shard": f"INPUT/scenes/parts {PICTURES} --by-shard",
    "audit/vectors": VECTORS,
    "audit/vectors-by-shard": f"{PARTS} --by-shard --sample 2000",  # of 3,000
}
RENAMED = {"columns/mismatch_score": "columns/match_probability"}  # since results were frozen
NOT_COMPARED = ("problem",)  # columns that hold sentences for people


def run(name: str, inputs: Path) -> Result | str:
    """The result of one case; if it fails, the last line that it said."""
    with tempfile.TemporaryDirectory() as work:
        try:
            if name in AUDITS:
                return audit([a.replace("INPUT", str(inputs)) for a in AUDITS[name].split()], Path(work))
            recipe = DUAL if name.startswith("dual/") else SCENES
            return train(recipe.replace("INPUT", str(inputs)), TRAININGS[name].split(), Path(work))
        except subprocess.CalledProcessError as problem:
            return (problem.stderr.strip() or f"exit status {problem.returncode}").splitlines()[-1]


def train(recipe: str, changes: list[str], work: Path) -> Result:
    """Train, and read the weights and the metrics of the run."""
    (work / "recipe.toml").write_text(recipe, encoding="utf-8")
    python("-m", "sremkit", "train", "recipe.toml", "--out", "run", *(f"--set={c}" for c in changes), work=work)
    result: Result = {}
    # Where weights are averaged, the best ones are the averaged ones.
    for kind, pattern in (("last", "step-*"), ("best", "best-*")):
        newest = max((work / "run" / "checkpoints").glob(pattern))
        for name, tensor in load_file(newest / "tensors.safetensors").items():
            if name.startswith("model/"):
                result[f"weights/{kind}/{name.removeprefix('model/')}"] = tensor
    rows = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]
    names = {name for row in rows for name in row if not name.startswith("time/")}
    return result | {f"metrics/{name}": _numbers([row.get(name) for row in rows]) for name in names}


def audit(arguments: list[str], work: Path) -> Result:
    """Audit, and read the verdicts and the noise rate."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    python("-m", "sremkit", "audit", *arguments, "--workers", "0", "-o", "audit", work=work)
    table = parquet.read_table(work / "audit" / "pairs.parquet")
    result: Result = {}
    for name in table.column_names:
        as_array = _letters if pa.types.is_string(table[name].type) else _numbers
        if name not in NOT_COMPARED:
            result[f"columns/{name}"] = as_array(table[name].to_pylist())
    rate = json.loads((work / "audit" / "summary.json").read_text())["noise_rate"]
    return result | {f"noise_rate/{name}": _numbers([value]) for name, value in rate.items()}


def python(*arguments: str, work: Path) -> str:
    """What Python says when it runs in the folder `work`, on one core."""
    paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    one_core = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    env = {**os.environ, **one_core, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=work, env=env, check=True, text=True, capture_output=True).stdout


def _numbers(values: list[Any]) -> np.ndarray:
    return np.array(values, dtype=np.float64)  # None becomes NaN


def _letters(values: list[Any]) -> np.ndarray:
    """Texts as an array of bytes: safetensors hold nothing but numbers."""
    return np.frombuffer(json.dumps(values).encode(), dtype=np.uint8)


def compare(frozen: Result, now: Result) -> tuple[bool, str]:
    """Whether all that both have is the same, and a sentence; names that are gone are told, new ones are not."""
    frozen, now = ({RENAMED.get(name, name): array for name, array in result.items()} for result in (frozen, now))
    shared = frozen.keys() & now.keys()
    before, after = _weights(frozen), _weights(now)
    gone = sorted(frozen.keys() - now.keys() - before.keys())
    remarks = f" (missing: {', '.join(gone)})" if gone else ""
    if before.keys() != after.keys():
        remarks += " (names of weights differ)"
        if lost := (_digests(before) - _digests(after)).total():
            return False, f"differs: {lost} of {len(before)} weights are there under no name{remarks}"
        shared -= before.keys()
    if not shared:
        return False, f"differs: nothing to compare{remarks}"
    largest, where = max((_difference(frozen[name], now[name]), name) for name in shared)
    if largest > 0:
        return False, f"differs: max abs difference {largest:.3g} in {where}{remarks}"
    return True, f"equal{remarks}"


def _weights(result: Result) -> Result:
    return {name: array for name, array in result.items() if name.startswith("weights/")}


def _digests(weights: Result) -> Counter[tuple[Any, ...]]:
    """The weights without their names."""
    return Counter((w.shape, hashlib.sha256(w.tobytes()).hexdigest()) for w in weights.values())


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference; infinite where shapes differ, or where only one is a number."""
    if a.shape != b.shape:
        return float("inf")
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    differences = np.abs(a - b, where=~same, out=np.zeros_like(a))
    return float(np.nan_to_num(differences, nan=np.inf, posinf=np.inf).max(initial=0.0))


def write_inputs(inputs: Path) -> None:
    """Scenes as pictures and tables, and vectors of Flickr8k, both with some texts shuffled; a few more to train on."""
    rng = np.random.default_rng(0)
    _write_scenes(inputs / "scenes", rng)
    captions, images, texts = _flickr8k(Path(os.environ["SREMKIT_DATA"]) / "flickr8k")
    first = [k for k, (_, _, number, _) in enumerate(captions) if number == "0"][:3000]
    shuffled = texts[first][_shuffled(len(first), rate=0.4, rng=rng)]
    for name, array in (("images", images[first]), ("texts", shuffled)):
        parts = inputs / "vectors" / name
        parts.mkdir(parents=True)
        np.save(inputs / "vectors" / f"{name}.npy", array)
        for number, part in enumerate(np.array_split(array, 3)):
            np.save(parts / f"{number:03d}.npy", part)
    rows = [(image, text, "train" if k < 105 else "val") for k, (image, _, _, text) in enumerate(captions[:210])]
    _write_csv(inputs / "small" / "pairs.csv", ("image", "text", "split"), rows)
    np.save(inputs / "small" / "images.npy", images[: len(rows)])
    np.save(inputs / "small" / "texts.npy", texts[: len(rows)])


def _write_scenes(folder: Path, rng: np.random.Generator) -> None:
    """200 pictures with three captions each."""
    from sremkit.data.generated.scenes import make_scenes

    scenes = make_scenes(200)
    assert scenes.images is not None
    (folder / "pictures").mkdir(parents=True)
    for k in range(200):
        scenes.images.open(k).save(folder / "pictures" / f"{k:03d}.png")
    chosen = [k for k in range(len(scenes.texts)) if k % 5 < 3]  # there are five
    order = _shuffled(len(chosen), rate=0.25, rng=rng)
    texts = [scenes.texts[chosen[k]] for k in order]
    rows = [(f"pair-{k}", f"{scenes.image_of_text[k]:03d}.png", t) for k, t in zip(chosen, texts, strict=True)]
    _write_csv(folder / "pairs.csv", ("id", "image", "text"), rows)
    for number in range(3):
        part = rows[200 * number : 200 * (number + 1)]
        _write_csv(folder / "parts" / f"{number:03d}.csv", ("id", "image", "text"), part)


def _flickr8k(folder: Path) -> tuple[list[list[str]], np.ndarray, np.ndarray]:
    """Image, split, number and text of each caption, its image's vector, and its own."""
    lines = (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()
    captions = [line.split("\t") for line in lines[1:]]
    row_of = {name: row for row, name in enumerate((folder / "images.txt").read_text().split())}
    images = np.load(folder / "pooled.npy")[[row_of[image] for image, *_ in captions]]
    return captions, images, np.load(folder / "sentences.npy")


def _shuffled(count: int, *, rate: float, rng: np.random.Generator) -> np.ndarray:
    """0 to count - 1, of which a share `rate` has changed places."""
    order = np.arange(count)
    chosen = rng.choice(count, int(rate * count), replace=False)
    order[chosen] = np.roll(chosen, 1)
    return order


def _write_csv(path: Path, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("write", "check"))
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the frozen results are")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only cases such as 'method/*'")
    args = parser.parse_args(arguments)
    folder, writes = args.folder.resolve(), args.command == "write"
    files = {c: folder / f"{c}.safetensors" for c in (*TRAININGS, *AUDITS) if fnmatch(c, args.only)}
    if not files:
        sys.exit(f"no case is called '{args.only}'; there are: {', '.join((*TRAININGS, *AUDITS))}")
    if writes and (there := [file for file in files.values() if file.exists()]):
        sys.exit(f"{there[0]} was written before; to write it anew, remove it first")
    code = python("-c", "import sremkit; print(sremkit.__file__)", work=Path(tempfile.gettempdir()))
    print("code:", code.strip(), flush=True)
    if writes and not (folder / "input").exists():
        write_inputs(folder / "input")
    passed = []
    for name, file in files.items():
        started = time.monotonic()
        result = run(name, folder / "input")
        if isinstance(result, str):
            good, sentence = False, f"failed: {result}"
        elif writes:
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file(result, file)
            good, sentence = True, "written"
        elif not file.exists():
            good, sentence = False, "was never written"
        else:
            good, sentence = compare(load_file(file), result)
        passed.append(good)
        print(f"{name:32} {sentence} [{time.monotonic() - started:.0f} s]", flush=True)
    print(f"{sum(passed)} of {len(passed)} cases {'written' if writes else 'equal'}")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
