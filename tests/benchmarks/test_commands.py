"""Every benchmark has help that states its command, and refuses mistakes before it measures anything."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(file.stem for file in FOLDER.glob("*.py") if "__main__" in file.read_text(encoding="utf-8"))
RATES = "--noise takes comma-separated rates from 0 to 1, such as 0.2,0.4; got"


def script(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_benchmark_has_help_and_a_row_in_the_readme(name: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="0"):
        script(name).main(["--help"])
    printed = capsys.readouterr().out
    assert "default: []" not in printed
    assert "default: None" not in printed
    assert re.search(rf"benchmarks[./]{name}\b", (FOLDER / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("questions", ["--noise", "0.4,"], f"{RATES} '0.4,'"),
        ("questions", ["--jobs", "0"], "--jobs must be 1 or more, got 0"),
        ("speed", ["--batch-size", "0"], "--batch-size must be 1 or more, got 0"),
        ("speed", ["nope"], "there is no backbone called 'nope'; known: "),
        ("growth", ["saff"], "there is no backbone called 'saff'; did you mean 'saf'?"),
        ("loader", ["nope"], "there is no backbone called 'nope'; known: "),
        ("speed", ["saf", "--device", "gpu"], "there is no device called 'gpu'; choose auto, cpu"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_made(
    name: str, arguments: list[str], message: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert script(name).main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"python -m benchmarks.{name}: {message}")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []
