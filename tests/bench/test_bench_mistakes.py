"""Mistakes on the command line of the benches are reported before anything is trained or measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from sremkit.cli.main import main

RATES = "--noise takes comma-separated rates from 0 to 1, such as 0.2,0.4; got"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["methods", "--noise", "abc"], f"{RATES} 'abc'"),
        (["methods", "--noise", "40"], f"{RATES} '40'"),
        (["methods", "--noise", "nan"], f"{RATES} 'nan'"),
        (["ablation", "--noise", "0.4,x"], f"{RATES} '0.4,x'"),
        (["methods", "--seeds", "-1"], "--seeds must be 1 or more, got -1"),
        (["ablation", "--seeds", "0"], "--seeds must be 1 or more, got 0"),
        (["ablation", "--jobs", "0"], "--jobs must be 1 or more, got 0"),
        (["efficiency", "--epochs", "0"], "--epochs must be 1 or more, got 0"),
        (["speed", "saf", "--check"], "`srem bench speed` is now `python -m benchmarks.speed`"),
        (["growth"], "`srem bench growth` is now `python -m benchmarks.growth`"),
        (["loader", "--help"], "`srem bench loader` is now `python -m benchmarks.loader`"),
        (["tiles", "--width", "8"], "`srem bench tiles` is now `python -m benchmarks.tiles`"),
        (["questions", "-o", "x.csv"], "`srem bench questions` is now `python -m benchmarks.questions`"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_made(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"srem: {message}")
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bench", ["methods", "ablation", "efficiency", "figures"])
def test_help_states_no_default_where_there_is_none(bench: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["bench", bench, "--help"])
    printed = capsys.readouterr().out
    assert "default: []" not in printed
    assert "default: None" not in printed
    assert "(default: " in printed
