"""Ray, on a cluster of two workers on this machine, computes exactly what one process computes."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sharded import write_embeddings

parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("jinja2")
if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed (pip install 'sremkit[scale]')", allow_module_level=True)

TESTS = Path(__file__).parents[2]
SECONDS = 300  # after which a cluster that hangs is ended
SCRIPT = """
import os
import sys
from dataclasses import replace
from pathlib import Path
import ray
from sharded import small_plan
from sremkit.audit.sharded.run import audit_shards, run_on_ray
from sremkit.audit.sharded.plan import list_embeddings
from sremkit.errors import UserError

root, out = Path(sys.argv[1]), Path(sys.argv[2])
plan = small_plan(out, list_embeddings(root / "images", root / "texts"), max_train_pairs=600)
if sys.argv[3] == "plain":
    assert audit_shards(plan).summary is not None
    sys.exit()
ray.init("local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", logging_level="error")
try:
    assert audit_shards(plan, engine=run_on_ray).summary is not None
    assert ray.is_initialized()  # a cluster that was there before is left alone
    try:
        list(run_on_ray(fails, plan, [0, 1, 2]))
    except UserError as sentence:
        print(sentence)
    os.chdir(root)  # while the workers stay where they were started
    there = replace(plan, out=Path("relative"), shards=list_embeddings(Path("images"), Path("texts")))
    assert audit_shards(there, engine=run_on_ray).summary is not None
    assert (root / "relative" / "pairs.parquet").exists()
finally:
    ray.shutdown()
"""
FAILS = """
def fails(plan, number):
    from sremkit.errors import DataError
    raise DataError(f"shard {number} is no good")
"""


def run_script(*arguments: str) -> str:
    """Each in a process of its own with one thread: sums over two threads would differ in their last bits."""
    process = subprocess.Popen(
        [sys.executable, "-c", FAILS + SCRIPT, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": "",
        },
    )
    try:
        output, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the cluster's processes are in the same group
        output, _ = process.communicate()
        pytest.fail(f"the script did not finish within {SECONDS} s: {output[-2000:]}")
    assert process.returncode == 0, output[-4000:]
    return output


@pytest.mark.alone
def test_two_ray_workers_find_exactly_what_one_process_finds(tmp_path: Path) -> None:
    write_embeddings(tmp_path, num_images=400, shards=4)
    run_script(str(tmp_path), str(tmp_path / "plain"), "plain")
    output = run_script(str(tmp_path), str(tmp_path / "ray"), "ray")
    by_ray, by_one = (parquet.read_table(tmp_path / name / "pairs.parquet") for name in ("ray", "plain"))
    assert by_one["match_probability"].null_count == 0
    assert by_ray.equals(by_one)
    assert "is no good" in output
    assert output.count("Traceback") == 0  # no traceback for a user error
