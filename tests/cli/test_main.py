"""The command line: helps, lists, and answers mistakes with sentences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sremkit.cli.main import COMMANDS, main
from sremkit.training.diagnostics import StoppedError
from sremkit.version import __version__


def run(*arguments: str, capsys) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as end:  # argparse ends --help and wrong usage this way
        code = end.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_help_names_every_command(capsys) -> None:
    code, out, _ = run("--help", capsys=capsys)
    assert code == 0
    assert all(f"    {command} " in out for command in COMMANDS)


def test_no_arguments_print_the_help(capsys) -> None:
    code, out, _ = run(capsys=capsys)
    assert code == 0
    assert "usage: srem" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help_page(command: str, capsys) -> None:
    code, out, _ = run(command, "--help", capsys=capsys)
    assert code == 0
    assert f"usage: srem {command}" in out
    assert len(out.splitlines()) > 5


def test_version(capsys) -> None:
    assert run("--version", capsys=capsys)[1] == f"sremkit {__version__}\n"


def test_python_m_sremkit_is_the_same_command() -> None:
    run = subprocess.run([sys.executable, "-m", "sremkit", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"sremkit {__version__}\n"


def test_list_names_what_is_registered(capsys) -> None:
    _, out, _ = run("list", capsys=capsys)
    for heading in ("methods:", "backbones:", "formats:", "recipes:"):
        assert heading in out
    for name in ("srem", "infonce", "dual", "precomp", "webdataset", "scenes-srem"):
        assert f"  {name} " in out


def test_list_of_one_kind(capsys) -> None:
    _, out, _ = run("list", "methods", capsys=capsys)
    assert out.startswith("methods:\n")
    assert "backbones:" not in out
    assert all(len(line.split(maxsplit=1)) == 2 for line in out.splitlines()[1:])  # each has a description


def test_list_shows_the_backbones_that_recipes_can_train(capsys) -> None:
    _, out, _ = run("list", "backbones", capsys=capsys)
    shown = {line.split()[0] for line in out.splitlines()[1:]}
    assert {"sgr", "dual", "clip", "vit"} <= shown
    assert not shown & {"two-networks", "meta-scored"}


def test_a_noise_file_is_made_inspected_and_not_overwritten(tmp_path: Path, capsys) -> None:
    file = tmp_path / "noise.npy"
    code, made, _ = run("noise", "make", "--images", "200", "--rate", "0.4", "-o", str(file), capsys=capsys)
    assert code == 0
    assert np.load(file).shape == (1000,)
    code, inspected, _ = run("noise", "inspect", str(file), capsys=capsys)
    assert inspected == made
    assert "per caption" in inspected
    code, _, err = run("noise", "make", "--images", "200", "-o", str(file), capsys=capsys)
    assert code == 2
    assert err.startswith("srem: ")
    assert "exists already" in err


def test_a_per_image_file_from_the_pairs_themselves(tmp_path: Path, capsys) -> None:
    np.save(tmp_path / "train_ims.npy", np.zeros((20, 1, 2), dtype=np.float32))
    (tmp_path / "train_caps.txt").write_text("".join(f"caption {k}\n" for k in range(40)))
    file = tmp_path / "noise.npy"
    options = ["--data", str(tmp_path), "--protocol", "image", "--rate", "0.5", "-o", str(file)]
    code, out, err = run("noise", "make", *options, capsys=capsys)
    assert code == 0, err
    assert np.load(file).shape == (20,)
    assert "per image" in out


@pytest.mark.data
def test_published_files_are_told_as_they_are(data_root: Path, capsys) -> None:
    for rate, realised in (("0.2", "0.19999"), ("0.4", "0.40000"), ("0.6", "0.59997")):
        _, out, _ = run("noise", "inspect", str(data_root / f"published/f30k_per_caption_{rate}.npy"), capsys=capsys)
        assert realised in out
    _, out, _ = run("noise", "inspect", str(data_root / "published/f30k_per_image_0.2.npy"), capsys=capsys)
    assert "5,799 of 29,000" in out


def test_a_users_mistake_is_a_sentence_without_traceback(tmp_path: Path, capsys) -> None:
    code, _, err = run("noise", "inspect", str(tmp_path / "nothing.npy"), capsys=capsys)
    assert code == 2
    assert err.startswith("srem: ")
    assert "nothing.npy" in err
    assert "Traceback" not in err


def test_a_run_that_was_stopped_ends_like_any_stopped_command(monkeypatch, capsys) -> None:
    def stopped(args: object) -> None:
        raise StoppedError("stopped after 3 steps and saved")

    monkeypatch.setattr("sremkit.cli.train.run", stopped)
    assert main(["train", "scenes-srem"]) == 130
    assert "stopped after 3 steps" in capsys.readouterr().err
