"""Workers and nodes of Ray that are lost in the middle of a sharded audit. Everything stays on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from benchmarks.fault_processes import children_of
from benchmarks.faults import Figures

SHARDS = 12
START_SECONDS = 180  # until the first shards are done
AUDIT = ("audit", "--image-emb", "images", "--text-emb", "texts", "--sharded")
# A cluster of a head without cores and two nodes with one each; the first node is lost when a line comes.
CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "node_ip_address": "127.0.0.1"})
nodes = [cluster.add_node(num_cpus=1, node_ip_address="127.0.0.1") for _ in range(2)]
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.remove_node(nodes[0], allow_graceful=False)
print("lost", flush=True)
sys.stdin.readline()
cluster.shutdown()
"""


def write_shards(folder: Path, *, pairs: int = 2_400) -> None:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((pairs, 64)).astype(np.float32)
    texts = images @ rng.standard_normal((64, 48)).astype(np.float32)
    for name, rows in (("images", images), ("texts", texts)):
        (folder / name).mkdir()
        for number, part in enumerate(np.array_split(rows, SHARDS)):
            np.save(folder / name / f"{number:03d}.npy", part)


def kill_ray_workers(kills: int) -> Figures:
    """Kill workers while they are at work on a shard; Ray gives the shard to another one."""
    figures = Figures("Ray worker killed", "audit --sharded")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        whole = _whole(Path(folder), figures)
        series = 0
        while figures.times < kills and not figures.defects:
            series += 1
            audit = _start(Path(folder), f"ray-{series}", "--engine", "ray", "--workers", "2")
            seen: set[int] = set()
            while audit.poll() is None:
                for pid in children_of(audit.pid):
                    if pid not in seen and len(seen) < min(kills - figures.times, 6) and _is_at_work(pid):
                        seen.add(pid)
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.005)
            figures.times += len(seen)
            _compare(figures, audit, Path(folder) / f"ray-{series}", whole)
            if not seen:
                figures.defects.append("no worker was seen at work")
    figures.note = f"{series} audits"
    return figures


def lose_ray_node() -> Figures:
    """One of two nodes is lost when the first shards are done; the other one does its work."""
    figures = Figures("Ray node lost", "audit --sharded", times=1)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        whole = _whole(Path(folder), figures)
        cluster = subprocess.Popen(
            [sys.executable, "-c", CLUSTER], env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        assert cluster.stdin is not None
        assert cluster.stdout is not None
        try:
            address = cluster.stdout.readline().strip()
            audit = _start(Path(folder), "ray", "--engine", "ray", address=address)
            end = time.monotonic() + START_SECONDS
            while audit.poll() is None and len(list((Path(folder) / "ray").glob("shards/*/prepared.json"))) < 2:
                if time.monotonic() > end:
                    os.killpg(audit.pid, signal.SIGKILL)
                    audit.wait()
                time.sleep(0.01)
            figures.check(audit.poll() is None, "the audit had ended before the node was lost")
            cluster.stdin.write("\n")
            cluster.stdin.flush()
            figures.check(cluster.stdout.readline() == "lost\n", "the node was not lost")
            audit.wait(300)
            _compare(figures, audit, Path(folder) / "ray", whole)
            cluster.communicate("\n", timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(cluster.pid, signal.SIGKILL)
            cluster.wait()
    return figures


def _whole(folder: Path, figures: Figures) -> bytes:
    write_shards(folder)
    plain = _start(folder, "plain")
    figures.check(plain.wait(300) == 0, _output(folder, "plain"))
    return (folder / "plain" / "pairs.parquet").read_bytes()


def _start(folder: Path, out: str, *options: str, address: str = "") -> subprocess.Popen[bytes]:
    command: Sequence[str] = [sys.executable, "-m", "sremkit", *AUDIT, "-o", out, *options]
    with (folder / f"{out}.log").open("w") as log:
        return subprocess.Popen(
            command, cwd=folder, env=_environment(address), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def _environment(address: str = "") -> dict[str, str]:
    fixed = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": address, "RAY_DEDUP_LOGS": "0",
             "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # fmt: skip  # else 127.0.0.1 is replaced by a network address
    return {**os.environ, **fixed, "PYTHONPATH": os.pathsep.join(sys.path)}


def _output(folder: Path, out: str) -> str:
    return (folder / f"{out}.log").read_text()[-1500:]


def _compare(figures: Figures, audit: subprocess.Popen[bytes], out: Path, whole: bytes) -> None:
    if audit.returncode:
        figures.defects.append(f"exit status {audit.returncode}: {_output(out.parent, out.name)}")
    else:
        figures.check((out / "pairs.parquet").read_bytes() == whole, "other bytes")


def _is_at_work(pid: int) -> bool:
    """Whether a process is a Ray worker inside of a task: Ray gives it the name of the task then."""
    try:
        name = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return name.startswith((b"ray::prepare_shard", b"ray::score_shard"))
