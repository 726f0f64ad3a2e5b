"""`import sremkit` imports the objective and costs little more than torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MEASURE = """
import json, sys, time
import torch
before = set(sys.modules)
start = time.perf_counter()
import sremkit
seconds = time.perf_counter() - start
added = sorted({name.split(".")[0] for name in set(sys.modules) - before})
print(json.dumps({"seconds": seconds, "added": added, "names": sremkit.__all__}))
"""


def measured() -> dict:
    run = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def test_the_import_needs_torch_alone() -> None:
    found = measured()
    third_parties = set(found["added"]) - set(sys.stdlib_module_names)
    assert third_parties == {"sremkit"}
    public = {"SREM", "Audit", "SREMPlus", "Terms", "TiledSREM", "WarmupMonitor", "__version__"}
    assert set(found["names"]) == public


def test_the_objectives_import_without_numpy() -> None:
    blocked = "import sys; sys.modules['numpy'] = None; import warnings; warnings.simplefilter('ignore');"
    code = f"{blocked} import sremkit, torch; sremkit.SREM()(torch.eye(3)); print('fine')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "fine", run.stderr[-1000:]


@pytest.mark.alone
def test_the_import_adds_at_most_three_tenths_of_a_second_to_torch() -> None:
    assert min(measured()["seconds"] for _ in range(3)) < 0.3
