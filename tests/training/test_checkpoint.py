"""Checkpoints: complete or absent, and exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sremkit.errors import UserError
from sremkit.methods.common.state_dicts import load_optimizer_tensors, optimizer_tensors
from sremkit.training import checkpoint
from sremkit.training.checkpoint import (
    CheckpointError,
    is_valid,
    read_checkpoint,
    write_checkpoint,
)
from sremkit.training.run_folder import DamagedWarning, RunFolder

TENSORS = {"model/w": torch.arange(6.0).reshape(2, 3), "generator/cpu": torch.get_rng_state()}
FACTS = {"position": {"best_score": 0.1 + 0.2, "epoch": 3}}


def test_what_is_written_comes_back_exactly(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step-1", TENSORS, FACTS)
    tensors, facts = read_checkpoint(tmp_path / "step-1")
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert facts["position"] == FACTS["position"]  # floats too: JSON keeps every digit


def test_a_checkpoint_cut_short_is_not_valid(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step-1", TENSORS, FACTS)
    file = tmp_path / "step-1" / checkpoint.TENSORS
    file.write_bytes(file.read_bytes()[:-1])
    assert not is_valid(tmp_path / "step-1")
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        read_checkpoint(tmp_path / "step-1")


def test_a_failure_while_writing_leaves_the_old_one_and_no_litter(tmp_path: Path, monkeypatch) -> None:
    write_checkpoint(tmp_path / "step-1", TENSORS, FACTS)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(tmp_path / "step-1", {"model/w": torch.zeros(1)}, {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]
    assert read_checkpoint(tmp_path / "step-1")[1]["position"]["epoch"] == 3


def test_the_newest_complete_checkpoint_is_taken(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    for step in (5, 10, 15):
        folder.save_step(step, TENSORS, {"step": step})
    assert sorted(f.name for f in folder.checkpoints.iterdir()) == ["step-00000010", "step-00000015"]
    (folder.checkpoints / "step-00000015" / checkpoint.FACTS).write_text('{"half')
    with pytest.warns(DamagedWarning, match="step-00000015 is damaged .* step-00000010 is used instead"):
        saved = folder.latest_step()
    assert saved is not None
    assert saved[1]["step"] == 10


def test_a_crash_while_an_old_checkpoint_is_removed_leaves_only_complete_ones(tmp_path: Path, monkeypatch) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    for step in (1, 2):
        folder.save_step(step, TENSORS, {"step": step})

    def remove_one_file_and_crash(path: Path, **_: object) -> None:
        if path.exists():
            (path / checkpoint.FACTS).unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.shutil, "rmtree", remove_one_file_and_crash)
    with pytest.raises(KeyboardInterrupt):
        folder.save_step(3, TENSORS, {"step": 3})
    assert [is_valid(path) for path in folder.checkpoints.glob("step-*")] == [True, True]


def test_only_the_best_model_stays(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    with pytest.raises(CheckpointError, match="holds no model yet"):
        folder.best()
    folder.save_best(5, TENSORS, {"step": 5})
    folder.save_best(9, TENSORS, {"step": 9})
    assert folder.best()[1]["step"] == 9
    assert [f.name for f in folder.checkpoints.iterdir()] == ["best-00000009"]


def test_metrics_of_epochs_to_be_repeated_are_forgotten(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    for epoch in (0, 1, 2):
        folder.append_metrics({"epoch": epoch})
    with folder.metrics.open("a") as file:
        file.write('{"epoch": 2')  # the process ended here
    folder.forget_metrics_from(2)
    assert folder.read_metrics() == [{"epoch": 0}, {"epoch": 1}]


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", config="x = 1")
    with pytest.raises(UserError, match="holds a run already; go on with `srem train --resume"):
        RunFolder.create(tmp_path / "run", config="x = 2")
    with pytest.raises(UserError, match="holds no run"):
        RunFolder.open(tmp_path / "elsewhere")


def test_an_optimiser_gets_its_memory_back() -> None:
    def train(steps: int, weight: torch.nn.Parameter, adam: torch.optim.Adam) -> None:
        for step in range(steps):
            adam.zero_grad()
            (weight * (step + 1)).pow(2).sum().backward()
            adam.step()

    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    adam = torch.optim.Adam([weight], lr=0.1)
    train(3, weight, adam)
    twin = torch.nn.Parameter(weight.detach().clone())
    other = torch.optim.Adam([twin], lr=0.1)
    load_optimizer_tensors(other, optimizer_tensors(adam))
    train(2, weight, adam)
    train(2, twin, other)
    assert torch.equal(weight, twin)


def test_loading_runs_no_code(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "step-1", TENSORS, FACTS)
    kinds = sorted(file.suffix for file in (tmp_path / "step-1").iterdir())
    assert kinds == [".json", ".safetensors"]
    json.loads((tmp_path / "step-1" / checkpoint.FACTS).read_text())
