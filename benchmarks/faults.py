"""Kill real processes at random moments, give the same command again, and compare the result with an uninterrupted one.

python -m benchmarks.faults --kills 20
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.commands import make_parser, run_command

FEATURES = Path(__file__).parents[1] / "tests" / "hostile" / "folders-0.1.0" / "features"
TRAIN = ("--set", "data.source=features", "--set", "training.epochs=60", "--set", "training.batch_size=4", "--set",
         "model.embed_size=2", "--set", "model.hidden_size=3", "--set", "training.checkpoint_minutes=0")  # fmt: skip


def srem(*arguments: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sremkit", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )


def finish(*arguments: str, folder: Path) -> float:
    """Run a command to its end; returns its seconds."""
    started = time.monotonic()
    process = srem(*arguments, folder=folder)
    _, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"srem {' '.join(arguments)} failed: {errors.decode()[-2000:]}")
    return time.monotonic() - started


def kill_at_random(*arguments: str, folder: Path, seconds: float, rng: random.Random) -> bool:
    """Start a command and kill it within `seconds`; returns whether it was still running."""
    process = srem(*arguments, folder=folder)
    time.sleep(rng.uniform(0, seconds))
    was_running = process.poll() is None
    if was_running:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return was_running


def train_weights(folder: Path) -> bytes:
    newest = sorted((folder / "run" / "checkpoints").glob("step-*"))[-1]
    return (newest / "tensors.safetensors").read_bytes()


def audit_table(folder: Path) -> bytes:
    import pyarrow.parquet as parquet

    return repr(parquet.read_table(folder / "audit" / "pairs.parquet").to_pydict()).encode()


def try_kills(
    name: str,
    prepare: Callable[[Path], None],
    first: Sequence[str],
    again: Sequence[str],
    result: Callable[[Path], bytes],
    kills: int,
) -> bool:
    """Kill a command `kills` times in a row, let the last one finish, and compare."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as broken:
        for folder in (whole, broken):
            prepare(Path(folder))
        seconds = finish(*first, folder=Path(whole))
        hit = 0
        for _ in range(kills):
            has_begun = (Path(broken) / "run" / "config.toml").exists() or name != "train"
            command = again if has_begun else first
            hit += kill_at_random(*command, folder=Path(broken), seconds=seconds, rng=rng)
        has_begun = (Path(broken) / "run" / "config.toml").exists() or name != "train"
        finish(*(again if has_begun else first), folder=Path(broken))
        same = result(Path(whole)) == result(Path(broken))
    verdict = "the same bytes" if same else "OTHER BYTES"
    print(f"{name:<8} {kills} kills, {hit} while running; {verdict} as an uninterrupted run ({seconds:.1f} s)")
    return same


def prepare_training(folder: Path) -> None:
    shutil.copytree(FEATURES, folder / "features")


def prepare_audit(folder: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((400, 8)).astype(np.float32)
    np.save(folder / "x.npy", images)
    np.save(folder / "y.npy", images @ rng.standard_normal((8, 6)).astype(np.float32))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("faults", __doc__)
    parser.add_argument("--kills", type=int, default=20, help="of each command")
    return run_command(parser, run, arguments)


def run(args: argparse.Namespace) -> int:
    kills = args.kills
    train = ("train", "features-dual-srem", "-o", "run", *TRAIN)
    audit = ("audit", "--image-emb", "x.npy", "--text-emb", "y.npy", "-o", "audit")
    same = [
        try_kills("train", prepare_training, train, ("train", "--resume", "run"), train_weights, kills),
        try_kills("audit", prepare_audit, audit, audit, audit_table, kills),
    ]
    return int(not all(same))


if __name__ == "__main__":
    sys.exit(main())
