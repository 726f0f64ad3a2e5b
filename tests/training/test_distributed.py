"""Several processes together equal one process on the joined batch. Real processes, real collectives."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ports import free_port
from pretrained_models import save_model, write_pairs
from sremkit.cli.main import main
from sremkit.config.recipes import OptionsDroppedWarning
from sremkit.data.pixels import UnreadableImagesWarning
from sremkit.training.run_folder import RunFolder
from sremkit.training.state import seed_generators

# Two processes a test are as many as there are cores: side by side with others they disturb each other.
pytestmark = pytest.mark.alone

SCRIPT = Path(__file__).with_name("two_processes.py")
TORCHRUN = ["torch.distributed.run", "--nproc_per_node=2", "--master_addr=127.0.0.1", "--master_port={port}"]
# accelerate's word for "several processes on this machine"; the recipe's device decides where they compute
ACCELERATE = ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
              "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port={port}"]  # fmt: skip


def torchrun(*arguments: str, launcher: list[str] = TORCHRUN) -> str:
    port = free_port()
    paths = [str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")]  # scripts import from `training` too
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    run = subprocess.run(
        [sys.executable, "-m", *(part.format(port=port) for part in launcher), *arguments],
        capture_output=True, text=True, check=False, env=environment, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def test_loss_and_gradients_of_two_processes_are_those_of_one_on_the_joined_batch() -> None:
    lines = [line.split() for line in torchrun(str(SCRIPT)).splitlines()]
    *backbones, step = lines
    assert [line[0] for line in backbones] == [
        "scan-t2i",
        "scan-i2t",
        "imram",
        "vse-infty",
        "sgr",
        "saf",
        "sgraf",
        "vit",
        "clip",
    ]
    for _, loss, gradient, active in backbones:
        assert float(loss) < 1e-9
        assert float(gradient) < 1e-9
        assert int(active) > 0  # the ranking loss took part
    name, loss, captioning, share = step  # what a step tells of a loss that each process has of its own pairs
    assert name == "vsrn"
    assert float(loss) < 1e-9
    assert float(captioning) < 1e-9
    assert 0.05 < float(share) < 1.0


def test_a_run_of_two_processes_with_uneven_shards_resumes_exactly(tmp_path: Path) -> None:
    lines = torchrun(str(SCRIPT.with_name("two_process_resume.py")), str(tmp_path)).splitlines()
    told = {words[0]: words[1:] for words in (line.split() for line in lines)}
    assert told["generators"] == ["generator/cpu", "generator/cpu-1"]
    assert told["resumed"] == ["True"]
    assert told["crippled"] == ["False"]  # so the second process draws random numbers of its own
    assert told["threads"] == []  # one that is left can abort the process at its end, in one of twenty runs


SMALL = [
    "train", "scenes-srem",
    "--set", "data.train_options.num_scenes=13",  # 65 pairs: the last batch holds one pair, fewer than processes
    "--set", "data.options.num_scenes=12",
    "--set", "training.epochs=1", "--set", "training.warmup_epochs=1", "--set", "training.batch_size=32",
    "--set", "model.embed_size=16", "--set", "model.word_dim=8", "--set", "model.name=scan-t2i",
    "--set", "training.device=cpu",
]  # fmt: skip


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_the_command_trains_in_two_processes_and_one_writes(tmp_path: Path, launcher: list[str]) -> None:
    out = torchrun("-m", "sremkit", *SMALL, "--out", str(tmp_path / "run"), launcher=launcher)
    assert out.count("the run is in") == 1
    folder = RunFolder.open(tmp_path / "run")
    assert [row["epoch"] for row in folder.read_metrics()] == [0, 1]
    assert json.loads(folder.record.read_text())["processes"] == 2
    tensors, _ = folder.best()
    assert all(torch.isfinite(t).all() for t in tensors.values())


def test_a_run_in_one_process_is_the_same_but_for_rounding(tmp_path: Path) -> None:
    shareable = [*SMALL, "--set", "data.train_options.num_scenes=12"]  # 60 pairs: 32 and 28
    torchrun("-m", "sremkit", *shareable, "--out", str(tmp_path / "two"))
    with pytest.warns(OptionsDroppedWarning, match="model.name is 'scan-t2i'"):
        main([*shareable, "--out", str(tmp_path / "one")])
    one, two = (
        RunFolder.open(tmp_path / "one").read_metrics(),
        RunFolder.open(tmp_path / "two").read_metrics(),
    )
    assert [row["loss"] for row in one] == pytest.approx([row["loss"] for row in two], rel=1e-4)


def test_fine_tuning_from_a_csv_in_two_processes_is_the_same_but_for_rounding(tmp_path: Path) -> None:
    """With crops, an unreadable image, a cache that both fill, and the saved model."""
    pairs = write_pairs(tmp_path / "data", 40)
    (tmp_path / "data" / "2.png").write_bytes(b"no image")
    command = [
        "train", "clip-finetune-srem",
        "--set", f"data.source={pairs}", "--set", f"model.folder={save_model(tmp_path / 'clip', 'clip')}",
        "--set", f"data.pixel_cache={tmp_path / 'cache'}", "--set", "data.image_workers=1",
        "--set", "noise.rate=0.3", "--set", "training.min_crop_area=0.5",
        "--set", "training.batch_size=7", "--set", "training.epochs=2", "--set", "training.learning_rate=1e-4",
        "--set", "training.device=cpu",
    ]  # fmt: skip
    torchrun("-m", "sremkit", *command, "--out", str(tmp_path / "two"))
    shutil.rmtree(tmp_path / "cache")
    with pytest.warns(UnreadableImagesWarning):
        assert main([*command, "--out", str(tmp_path / "one")]) == 0
    one, two = (RunFolder.open(tmp_path / name) for name in ("one", "two"))
    assert one.read_record()["pairs"] == two.read_record()["pairs"] == 23
    assert [row["loss"] for row in one.read_metrics()] == pytest.approx(
        [row["loss"] for row in two.read_metrics()], rel=1e-4
    )
    weights, same = (load_file(folder.path / "pretrained" / "model.safetensors") for folder in (one, two))
    for name in weights:  # Adam turns rounding of tiny gradients into steps, so the tolerance is that of a few
        torch.testing.assert_close(weights[name], same[name], rtol=0, atol=2e-4)


def test_a_run_on_pixels_from_scratch_in_two_processes_is_the_same_but_for_rounding(tmp_path: Path) -> None:
    """With a warm-up that measures the level of the logits, crops, and the objective after it."""
    command = [
        "train", "scenes-pixels-srem",
        "--set", "data.train_options.num_scenes=13",  # 65 pairs: batches of 33 and 32, so uneven shards
        "--set", "data.options.num_scenes=12",
        "--set", "training.batch_size=33", "--set", "training.min_crop_area=0.7", "--set", "training.device=cpu",
        "--set", "training.warmup_epochs=1", "--set", "training.epochs=1", "--set", "training.adaptive_warmup=false",
        "--set", "training.learning_rate=1e-4",
        "--set", "model.image_size=16", "--set", "model.patch_size=8", "--set", "model.hidden_size=8",
        "--set", "model.num_heads=2", "--set", "model.num_layers=1", "--set", "model.embed_size=8",
    ]  # fmt: skip
    torchrun("-m", "sremkit", *command, "--out", str(tmp_path / "two"))
    assert main([*command, "--out", str(tmp_path / "one")]) == 0
    one, two = (RunFolder.open(tmp_path / name) for name in ("one", "two"))
    assert [row["warmup"] for row in one.read_metrics()] == [True, False]
    assert [row["loss"] for row in one.read_metrics()] == pytest.approx(
        [row["loss"] for row in two.read_metrics()], rel=1e-4
    )
    (weights, _), (same, _) = one.best(), two.best()
    assert weights.keys() == same.keys()
    for name in weights:
        torch.testing.assert_close(weights[name], same[name], rtol=0, atol=1e-4)


def test_a_signal_to_one_process_stops_them_all_and_the_run_is_saved(tmp_path: Path) -> None:
    """It comes to the one that does not write."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "sremkit", *SMALL, "--set", "training.epochs=1000", "--out", str(run)]
    shared = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": "2"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        end = time.monotonic() + 120
        # An empty file is made before either listens for signals; a row says that both are training.
        while not RunFolder(run).read_metrics() and time.monotonic() < end:
            assert all(process.poll() is None for process in processes)
            time.sleep(0.1)
        processes[1].send_signal(signal.SIGTERM)
        told = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    saved = RunFolder.open(run).latest_step()
    assert saved is not None
    steps = saved[1]["position"]["step"]
    for process, text in zip(processes, told, strict=True):
        assert f"stopped after {steps} steps and saved" in text
        assert process.returncode == processes[0].returncode != 0


def test_every_process_has_its_own_random_stream_and_the_first_that_of_a_single_process() -> None:
    draws = []
    for rank in range(3):
        seed_generators(7, rank)
        draws.append(torch.rand(4).tolist())
    torch.manual_seed(7)
    assert draws[0] == torch.rand(4).tolist()
    assert draws[0] != draws[1] != draws[2] != draws[0]
