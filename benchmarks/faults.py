"""Disturb real processes, give the same command again, and compare the result with an undisturbed one.

python -m benchmarks.faults --kills 20

Processes are killed at random moments, the disk is full or read-only, the output folder vanishes, a second process
writes to it, there are 64 file descriptors, and workers and nodes of Ray are lost. Linux; a full and a read-only disk
need the right to mount one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks.commands import make_parser, run_command
from benchmarks.fault_processes import Ended, Limits, Running, children_of, is_locked, run

FEATURES = Path(__file__).parents[1] / "tests" / "hostile" / "folders-0.1.0" / "features"
SETTINGS = ("data.source=features", "training.epochs=20", "training.batch_size=4", "model.embed_size=2",
            "model.hidden_size=3", "training.checkpoint_minutes=0", "training.device=cpu")  # fmt: skip
SET = [part for setting in SETTINGS for part in ("--set", setting)]
DISK_BYTES = 64 * 2**20
DESCRIPTORS = 64
PLACES = ("image_contents.txt", "image_files.jsonl")  # paths and dates, which differ between two inputs
OF_ONE_RUN = ("seconds", "extracted", "source", "key")  # of a summary: time, and the place of the input
Result = dict[str, bytes]


@dataclass(frozen=True)
class Work:
    """A command with its input and its result.

    Args:
        prepare: writes the input into an empty folder.
        arguments: of `srem`, where {out} is the output.
        again: after an interruption; the same by default.
        begun: the file, in the output, with which a run has begun, if `again` differs.
        result: what must be equal: the bytes of files, by name.
        lock: the file that is locked while a process writes, below the folder of {out}.
        setup: a module that the process imports first.
    """

    name: str
    prepare: Callable[[Path], object]
    arguments: tuple[str, ...]
    result: Callable[[Path], Result]
    lock: str
    again: tuple[str, ...] = ()
    begun: str = ""
    out: str = "out"
    setup: str = ""

    def command(self, out: Path) -> list[str]:
        """The arguments for this output, new or begun already."""
        has_begun = self.again and (out / self.begun).exists()
        return [part.format(out=out) for part in (self.again if has_begun else self.arguments)]

    def run(self, folder: Path, out: Path | None = None, *, limits: Limits | None = None) -> Ended:
        return run(self.command(out or folder / self.out), folder, setup=self.setup, limits=limits)

    def start(self, folder: Path, out: Path | None = None) -> Running:
        return Running(self.command(out or folder / self.out), folder, setup=self.setup)


@dataclass
class Figures:
    """What came of one fault."""

    fault: str
    command: str
    times: int = 0
    defects: list[str] = field(default_factory=list)
    note: str = ""

    def check(self, is_right: bool, problem: str) -> None:
        if not is_right:
            self.defects.append(problem)

    def __str__(self) -> str:
        verdict = "as undisturbed" if not self.defects else f"{len(self.defects)} DEFECTS: {self.defects[0]}"
        return f"{self.fault:<24} {self.command:<18} {self.times:>4}  {verdict}{f' ({self.note})' if self.note else ''}"


@contextmanager
def prepared(work: Work) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="faults-") as parent:
        folder = Path(parent) / "work"
        folder.mkdir()
        work.prepare(folder)
        yield folder


@cache
def undisturbed(work: Work) -> tuple[Result, float]:
    """The result of a process that nothing disturbs, and its seconds."""
    with prepared(work) as folder:
        run(["--version"], folder, setup=work.setup)  # the first one waits until everything is imported
        ended = work.run(folder)
        if ended.code:
            raise RuntimeError(f"{work.name} failed: {ended.output[-2000:]}")
        return work.result(folder / work.out), ended.seconds


def kill_at_random(work: Work, kills: int, *, seed: int = 0) -> Figures:
    """Kill a command at random moments; after each series of kills it is given again and must end the same.

    A series ends when the command is faster than its killer, or after `kills`. Every other kill also ends the workers.
    """
    whole, seconds = undisturbed(work)
    rng, figures, series = random.Random(seed), Figures("killed", work.name), 0
    while figures.times < kills:
        series += 1
        with prepared(work) as folder:
            while figures.times < kills:
                running = work.start(folder)
                time.sleep(rng.uniform(0, seconds))
                hit = running.send(signal.SIGKILL, to_group=rng.random() < 0.5)
                ended = running.end()
                if not hit or ended.code != -signal.SIGKILL:
                    figures.check(ended.code == 0, f"after a kill: {ended.output[-500:]}")
                    break
                figures.times += 1
            ended = work.run(folder)
            _check_end(figures, work, ended, whole, folder / work.out)
    figures.note = f"{series} series, {seconds:.1f} s undisturbed"
    return figures


def _check_end(figures: Figures, work: Work, ended: Ended, whole: Result, out: Path) -> None:
    """Whether a command ended well, or had done so before, and with the undisturbed result."""
    done_before = work.name.startswith("export") and "exists already" in ended.output
    if ended.code != 0 and not done_before:
        figures.defects.append(f"exit status {ended.code}: {ended.output[-1000:]}")
        return
    result = work.result(out)
    differing = [name for name in whole.keys() | result.keys() if whole.get(name) != result.get(name)]
    figures.check(not differing, f"other bytes: {', '.join(differing[:5])}")
    left = [entry.name for entry in out.parent.iterdir() if entry.name.startswith((".partial-", f".{out.name}"))]
    figures.check(not left, f"left behind: {left}")


def fill_disk(work: Work, free: Sequence[int]) -> Figures:
    """Run with so many bytes free on the disk of the output, then with room; a full disk must give a sentence."""
    whole, _ = undisturbed(work)
    figures, told = Figures("full disk", work.name), 0
    for count in free:
        with prepared(work) as folder, small_disk() as disk:
            ballast = disk / "ballast"
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(shutil.disk_usage(disk).free - count, 1))
            ended = work.run(folder, disk / work.out)
            told += ended.is_sentence
            figures.check(ended.code == 0 or ended.is_sentence, f"{count} bytes free: {ended.output[-1500:]}")
            ballast.unlink()
            figures.times += 1
            _check_end(figures, work, work.run(folder, disk / work.out), whole, disk / work.out)
    figures.note = f"{told} told, the others had enough room"
    return figures


@contextmanager
def small_disk() -> Iterator[Path]:
    """A disk of its own in memory; `PermissionError` without the right to mount one."""
    with tempfile.TemporaryDirectory(prefix="disk-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "sremkit-faults", folder]
        if shutil.which("mount") is None or subprocess.run(mount, check=False, capture_output=True).returncode:
            raise PermissionError("a disk cannot be mounted here")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def limit_file_size(work: Work, sizes: Sequence[int]) -> Figures:
    """As a full disk, for one file: the system refuses to let a file grow beyond so many bytes."""
    whole, _ = undisturbed(work)
    figures, told = Figures("files limited", work.name), 0
    for size in sizes:
        with prepared(work) as folder:
            ended = work.run(folder, limits={resource.RLIMIT_FSIZE: size})
            told += ended.is_sentence
            figures.check(ended.code == 0 or ended.is_sentence, f"{size} bytes: {ended.output[-1500:]}")
            figures.times += 1
            _check_end(figures, work, work.run(folder), whole, folder / work.out)
    figures.note = f"{told} told"
    return figures


def make_read_only(work: Work) -> Figures:
    """The disk of the output is read-only."""
    figures = Figures("read-only", work.name, times=1)
    with prepared(work) as folder, small_disk() as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        ended = work.run(folder, disk / work.out)
        figures.check(ended.is_sentence and "ead-only" in ended.output, ended.output[-1500:])
    return figures


def remove_output(work: Work, times: int, *, seed: int = 0) -> Figures:
    """The output folder is removed at a random moment while the command writes to it; then the command comes again."""
    whole, seconds = undisturbed(work)
    rng, figures, told = random.Random(seed), Figures("vanishing folder", work.name), 0
    for _ in range(times):
        with prepared(work) as folder:
            out = folder / "below" / work.out
            running = work.start(folder, out)
            running.wait_for(out.parent.exists)
            time.sleep(rng.uniform(0, seconds / 2))
            shutil.rmtree(out.parent, ignore_errors=True)
            ended = running.end()
            told += ended.is_sentence
            figures.check(ended.code == 0 or ended.is_sentence, ended.output[-1500:])
            figures.times += 1
            shutil.rmtree(out.parent, ignore_errors=True)
            _check_end(figures, work, work.run(folder, out), whole, out)
    figures.note = f"{told} told"
    return figures


def start_second(work: Work) -> Figures:
    """A second process writes to the same output while the first one does: it is refused, and the first one ends well.

    The first one is stopped meanwhile, so that it cannot be too fast.
    """
    whole, _ = undisturbed(work)
    figures = Figures("second process", work.name, times=1)
    with prepared(work) as folder:
        first = work.start(folder)
        is_writing = first.wait_for(partial(is_locked, folder / work.lock))
        first.send(signal.SIGSTOP)
        figures.check(is_writing and is_locked(folder / work.lock), "the first process had ended")
        second = work.run(folder)
        first.send(signal.SIGCONT)
        figures.check(second.is_sentence and "another" in second.output, f"the second: {second.output[-1000:]}")
        ended = first.end()
        figures.check(ended.code == 0, f"the first: {ended.output[-1000:]}")
        _check_end(figures, work, ended, whole, folder / work.out)
    return figures


def limit_descriptors(work: Work) -> Figures:
    """The system lets a process open 64 files."""
    whole, _ = undisturbed(work)
    figures = Figures(f"{DESCRIPTORS} descriptors", work.name, times=1)
    with prepared(work) as folder:
        ended = work.run(folder, limits={resource.RLIMIT_NOFILE: DESCRIPTORS})
        _check_end(figures, work, ended, whole, folder / work.out)
    return figures


def kill_two_processes(work: Work, kills: int, *, seed: int = 0) -> Figures:
    """Kill training in two processes under torchrun: all of its processes, or one of the two."""
    rng, figures, series = random.Random(seed), Figures("killed", "train, 2 processes"), 0
    with prepared(work) as folder:
        group = Torchrun(work, folder)
        group.wait_until_started()
        started = time.monotonic()
        code, output = group.communicate_all()
        seconds = time.monotonic() - started
        figures.check(code == 0, output[-1500:])
        whole = work.result(folder / work.out)
    while figures.times < kills:
        series += 1
        with prepared(work) as folder:
            while figures.times < kills:
                group = Torchrun(work, folder)
                group.wait_until_started()
                time.sleep(rng.uniform(0, seconds))
                hit = group.kill(one=rng.random() < 0.5, rng=rng)
                code, output = group.communicate_all()
                if not hit:
                    figures.check(code == 0, output[-1500:])
                    break
                figures.times += 1
            code, output = Torchrun(work, folder).communicate_all()
            _check_end(figures, work, Ended(code, output, 0), whole, folder / work.out)
    figures.note = f"{series} series, {seconds:.1f} s undisturbed"
    return figures


class Torchrun:
    """Training in two processes on this machine."""

    def __init__(self, work: Work, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        launcher = ["torch.distributed.run", "--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={port}"]
        self.log = folder.parent / f"torchrun-{port}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *launcher, "-m", "sremkit", *work.command(folder / work.out)],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_started(self) -> None:
        while self.process.poll() is None and "the run is in" not in self.log.read_text():
            time.sleep(0.01)

    def kill(self, *, one: bool, rng: random.Random) -> bool:
        """Kill one of the two processes, or all and torchrun; returns whether they were running."""
        trainers = children_of(self.process.pid)
        if self.process.poll() is not None or not trainers:
            return False
        for pid in [rng.choice(trainers)] if one else [self.process.pid, *trainers]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return True

    def communicate_all(self) -> tuple[int, str]:
        code = self.process.wait(300)
        return code, self.log.read_text()


def _files(out: Path, *, without: Sequence[str] = ()) -> Result:
    files = sorted(file for file in out.rglob("*") if file.is_file()) if out.is_dir() else [out]
    return {
        str(file.relative_to(out.parent)): file.read_bytes()
        for file in files
        if file.name not in without and not file.name.startswith(".")
    }


def result_of_run(run: Path) -> Result:
    """The weights, and everything of the epochs but their seconds."""
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    best = sorted((run / "checkpoints").glob("best-*"))[-1]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]
    weights = {f"{kind.name}": (kind / "tensors.safetensors").read_bytes() for kind in (newest, best)}
    return {**weights, "metrics": json.dumps(epochs).encode()}


def result_of_audit(out: Path) -> Result:
    """The table, and everything of the summary but its seconds; the report shows both."""
    import pyarrow.parquet as parquet

    summary = json.loads((out / "summary.json").read_text())
    kept = {name: value for name, value in summary.items() if name not in OF_ONE_RUN}
    assert "</html>" in (out / "report.html").read_text()[-100:]
    table = parquet.read_table(out / "pairs.parquet")  # whose metadata name the folder of the input
    return {"summary": json.dumps(kept).encode(), "table": repr(table.to_pydict()).encode()}


def write_embeddings(folder: Path, *, pairs: int = 120) -> None:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((pairs, 8)).astype(np.float32)
    np.save(folder / "x.npy", images)
    np.save(folder / "y.npy", images @ rng.standard_normal((8, 6)).astype(np.float32))


def write_images(folder: Path, *, images: int = 24) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    rows = ["image,text"]
    for k in range(images):
        Image.fromarray(rng.integers(0, 255, (48, 48, 3), dtype=np.uint8)).save(folder / f"{k}.png")
        rows.append(f"{k}.png,a square with number {k}")
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n")


def write_audit(folder: Path, *, rows: int = 20_000) -> None:
    """A finished audit, of which one row in four is a mismatch."""
    import pyarrow as pa

    from sremkit.audit.result_table import METADATA, write_table

    (folder / "audit").mkdir()
    numbers = np.arange(rows)
    columns = {
        "id": [f"{k:032x}" for k in numbers],
        "image": [f"images/{k}.jpg" for k in numbers],
        "text": [f"a caption with number {k}" for k in numbers],
        "match_probability": numbers * 7919 % rows / rows,
        "is_mismatch": numbers * 7919 % rows < rows // 4,
        "problem": pa.nulls(rows, pa.string()),
    }
    facts = {"own": {name: name for name in ("id", "image", "text")}, "source": {"format": "table", "path": "t.csv"}}
    table = pa.table(columns).replace_schema_metadata({METADATA: json.dumps(facts).encode()})
    write_table(table, folder / "audit" / "pairs.parquet")


def copy_features(folder: Path) -> None:
    shutil.copytree(FEATURES, folder / "features")


def works() -> list[Work]:
    """The commands that write much."""
    export = ("export", "audit", "-o", "{out}")
    return [
        Work("audit", write_embeddings, ("audit", "--image-emb", "x.npy", "--text-emb", "y.npy", "-o", "{out}"),
             result_of_audit, "out/.lock"),
        Work("features", write_images, ("features", "pairs.csv", "-o", "{out}", "--batch-size", "2"),
             partial(_files, without=PLACES), "out/extraction.jsonl"),
        Work("export csv", write_audit, export, _files, ".out.csv.lock", out="out.csv"),
        Work("export uids", write_audit, export, _files, ".out.npy.lock", out="out.npy"),
        Work("export fiftyone", write_audit, (*export, "--format", "fiftyone"), _files, ".out.lock"),
        Work("train", copy_features, ("train", "features-dual-srem", "-o", "{out}", *SET), result_of_run, "out/.lock",
             again=("train", "--resume", "{out}"), begun="config.toml"),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("faults", __doc__)
    parser.add_argument("--kills", type=int, default=20, help="of each command")
    parser.add_argument("--only", help="faults whose name begins so, such as kill, full, ray")
    parser.add_argument("--command", default="", help="commands whose name begins so, such as audit, export")
    return run_command(parser, run_faults, arguments)


def run_faults(args: argparse.Namespace) -> int:
    from benchmarks.fault_ray import kill_ray_workers, lose_ray_node

    free = (0, 8_192, 32_768, 131_072, 524_288, 2**21, 2**23)
    sizes = (0, 1_000, 20_000, 200_000, 2_000_000)
    everything = [work for work in works() if work.name.startswith(args.command)]
    train = works()[-1]
    faults: dict[str, list[Callable[[], Figures]]] = {
        "kill": [*(partial(kill_at_random, work, args.kills) for work in everything),
                 ],
        "two": [lambda: kill_two_processes(train, args.kills)],
        "full": [partial(fill_disk, work, free) for work in everything],
        "limited": [partial(limit_file_size, work, sizes) for work in everything],
        "read-only": [partial(make_read_only, work) for work in everything],
        "vanishing": [partial(remove_output, work, 5) for work in everything],
        "second": [partial(start_second, work) for work in everything],
        "descriptors": [partial(limit_descriptors, work) for work in everything],
        "ray": [lambda: kill_ray_workers(args.kills), lose_ray_node],
    }  # fmt: skip
    found = 0
    for name, tries in faults.items():
        if args.only and not name.startswith(args.only):
            continue
        for trial in tries:
            try:
                figures = trial()
            except PermissionError as cause:
                print(f"{name:<24} not measured: {cause}")
                continue
            print(figures, flush=True)
            found += len(figures.defects)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
