"""`srem audit --sharded`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from made_pairs import SMALL
from sharded import SEED, write_embeddings
from sremkit.cli import audit as command
from sremkit.cli.main import main
from sremkit.config.aliases import RenamedWarning

parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("jinja2")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings for little data."""
    real = command.make_plan
    monkeypatch.setattr(command, "make_plan", lambda args: replace(real(args), settings=replace(SMALL, seed=SEED)))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("parts")
    write_embeddings(root, num_images=200, shards=3)
    return ["--image-emb", str(root / "images"), "--text-emb", str(root / "texts")]


def run(parts: list[str], out: Path, *more: str) -> int:
    return main(["audit", *parts, "-o", str(out), "--sharded", *more])


def test_the_last_screen_shows_the_findings(parts: list[str], tmp_path: Path, capsys) -> None:
    assert run(parts, tmp_path / "out", "--max-train-pairs", "500") == 0
    output = capsys.readouterr().out
    assert "3 shards, from 000 to 002" in output
    assert "continuing after" not in output
    assert "of 600 scored pairs are flagged as mismatches" in output
    assert f"srem export {tmp_path / 'out'} -o keep.txt" in output
    assert run(parts, tmp_path / "out", "--max-train-pairs", "500") == 0
    assert "was complete already" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "out"), "-o", str(tmp_path / "keep.txt")]) == 0
    assert len((tmp_path / "keep.txt").read_text().splitlines()) > 300


def test_tasks_report_what_is_missing_and_a_last_command_completes_it(parts: list[str], tmp_path: Path, capsys) -> None:
    assert run(parts, tmp_path / "out", "--task", "0", "--of", "2") == 0
    assert "1 shard has no features yet (001): they belong to other tasks" in capsys.readouterr().out
    assert not (tmp_path / "out" / "pairs.parquet").exists()
    assert run(parts, tmp_path / "out", "--task", "1", "--of", "2") == 0
    assert "2 shards have no scores yet (000, 002)" in capsys.readouterr().out
    assert run(parts, tmp_path / "out") == 0
    assert run(parts, tmp_path / "whole") == 0
    first, second = (parquet.read_table(tmp_path / name / "pairs.parquet") for name in ("out", "whole"))
    assert first.equals(second)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--sharded"], "--sharded takes either a folder or pattern of shards"),
        (["--sharded", "--image-emb", "x.npy"], "--sharded takes either a folder or pattern of shards"),
        (["--sharded", "--run", "runs/x"], "--sharded takes either a folder or pattern of shards"),
        (["nowhere.tar", "--sharded"], "nowhere.tar does not exist"),
        (["x.csv", "--sharded", "--task", "1"], "--task and --of go together"),
        (["x.csv", "--sharded", "--task", "2", "--of", "2"], "--task must be a number from 0 to 1"),
        (["x.csv", "--task", "0", "--of", "2"], "--task is for large collections; add --sharded"),
        (["x.csv", "--engine", "ray"], "--engine is for large collections; add --sharded"),
    ],
)
def test_mistakes_are_user_errors(arguments: list[str], sentence: str, capsys) -> None:
    assert main(["audit", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_columns_of_tar_shards_and_an_empty_sample_are_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.tar").write_bytes(b"")
    assert main(["audit", str(tmp_path), "--sharded", "--text", "title"]) == 2
    assert "select tar shards with a pattern" in capsys.readouterr().err
    assert main(["audit", str(tmp_path), "--sharded", "--max-train-pairs", "0"]) == 2
    assert "--max-train-pairs must be 1 or more, got 0" in capsys.readouterr().err


def test_ctrl_c_keeps_everything_and_explains_how_to_continue(
    parts: list[str], tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sremkit.audit.sharded.run import ENGINES, run_locally

    def interrupted(work, plan, numbers):
        yield from run_locally(work, plan, numbers[:1])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setitem(ENGINES, "local", interrupted)
        assert run(parts, tmp_path / "out") == 130
    assert f"kept in {tmp_path / 'out'}; the same command continues from here" in capsys.readouterr().out
    assert run(parts, tmp_path / "out") == 0


def test_old_options_work_and_warn(parts: list[str], tmp_path: Path) -> None:
    command = ["audit", *parts, "--by-shard", "--sample", "500", "--engine", "plain"]
    with pytest.warns(RenamedWarning) as warned:
        assert main([*command, "-o", str(tmp_path / "out"), "--task", "0", "--of", "3"]) == 0
    assert sorted(str(w.message).split(";")[0] for w in warned) == [
        "'--by-shard' is now '--sharded'",
        "'--sample' is now '--max-train-pairs'",
        "'plain' is now 'local'",
    ]
