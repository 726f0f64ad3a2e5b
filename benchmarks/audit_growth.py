"""Time and memory of a sharded audit over the number of pairs, on generated vectors.

    python -m benchmarks.audit_growth --pairs 10000 100000 1000000 --out results/audit-growth.csv

Each audit is a process of its own: `srem audit --sharded`, near-duplicate search and merging included. Its peak memory
is that of the largest process.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import make_parser
from sremkit.bench.grid import write_csv
from sremkit.bench.tables import aligned
from sremkit.evaluation import detection_metrics
from sremkit.io import read_json

LATENT = 32
NOISE_RATE = 0.2


def write_shards(folder: Path, pairs: int, *, per_shard: int, dims: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Shards of two noisy views of a common latent vector, some pairs shuffled; returns which are wrong."""
    rng = np.random.default_rng(seed)
    maps = [rng.normal(size=(LATENT, dim)).astype(np.float32) / 6 for dim in dims]
    for name in ("images", "texts"):
        (folder / name).mkdir(parents=True)
    is_wrong = np.zeros(pairs, dtype=bool)
    for number, start in enumerate(range(0, pairs, per_shard)):
        count = min(per_shard, pairs - start)
        latent = rng.normal(size=(count, LATENT)).astype(np.float32)
        moved = rng.permutation(count)[: round(NOISE_RATE * count)]
        is_wrong[start + moved] = True
        of_image = latent.copy()
        of_image[moved] = latent[np.roll(moved, 1)]
        for name, source, dim, to in zip(("images", "texts"), (of_image, latent), dims, maps, strict=True):
            view = source @ to + rng.normal(size=(count, dim)).astype(np.float32)
            np.save(folder / name / f"{number:05d}.npy", view.astype(np.float16))
    return is_wrong


def measure(pairs: int, *, per_shard: int, dims: tuple[int, int], max_train_pairs: int, folder: Path) -> dict[str, Any]:
    """Audit one generated collection."""
    import pyarrow.parquet as parquet

    is_wrong = write_shards(folder, pairs, per_shard=per_shard, dims=dims)
    command = [sys.executable, "-m", "sremkit", "audit", "--sharded", "--image-emb", "images", "--text-emb", "texts"]
    started, used = time.monotonic(), children_seconds()
    with (folder / "log").open("w") as log:
        done = subprocess.run(
            [*command, "-o", "audit", "--max-train-pairs", str(max_train_pairs)],
            cwd=folder,
            stdout=log,
            stderr=log,
            check=False,
        )
    if done.returncode:
        raise RuntimeError((folder / "log").read_text()[-2000:])
    seconds = time.monotonic() - started
    table = parquet.read_table(folder / "audit" / "pairs.parquet", columns=["match_probability", "is_mismatch"])
    scores, flagged = (table[name].to_numpy(zero_copy_only=False) for name in table.column_names)
    rate = read_json(folder / "audit" / "summary.json")["noise_rate"]
    return {
        "pairs": pairs,
        "shards": -(-pairs // per_shard),
        "train_pairs": min(max_train_pairs, pairs),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(children_seconds() - used, 1),
        "ms_per_pair": round(1000 * seconds / pairs, 3),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024),
        "auroc": round(detection_metrics(is_wrong, scores)["auroc"], 4),
        "precision": round(float(is_wrong[flagged.astype(bool)].mean()), 4),
        "noise_rate": round(rate["estimate"], 4),
        "load_before": round(os.getloadavg()[0], 2),
    }


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser("audit_growth", __doc__)
    parser.add_argument("--pairs", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="sizes, rising")
    parser.add_argument("--per-shard", type=int, default=10_000, help="pairs in a shard")
    parser.add_argument("--dims", type=int, nargs=2, default=[256, 256], help="of image and text vectors")
    parser.add_argument("--max-train-pairs", type=int, default=50_000, help="of the sample")
    parser.add_argument("--out", type=Path, help="CSV to write")
    options = parser.parse_args(arguments)
    rows = []
    for pairs in options.pairs:
        folder = Path(tempfile.mkdtemp(prefix="audit-growth-"))
        try:
            rows.append(
                measure(
                    pairs,
                    per_shard=options.per_shard,
                    dims=tuple(options.dims),
                    max_train_pairs=options.max_train_pairs,
                    folder=folder,
                )
            )
        finally:
            shutil.rmtree(folder)
        print(aligned([list(rows[0]), *([str(value) for value in row.values()] for row in rows)]), flush=True)
        if options.out is not None:
            write_csv(rows, options.out)


if __name__ == "__main__":
    main()
