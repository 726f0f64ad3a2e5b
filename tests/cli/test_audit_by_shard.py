"""`srem audit --by-shard` from the outside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from made_pairs import SMALL
from sharded import SEED, write_embeddings
from sremkit.cli import by_shard
from sremkit.cli.main import main

parquet = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("jinja2")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging settings for little data."""
    real = by_shard.make_plan
    monkeypatch.setattr(
        by_shard, "make_plan", lambda args: replace(real(args), settings=replace(SMALL, seed=SEED))
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("parts")
    write_embeddings(root, num_images=200, shards=3)
    return ["--image-emb", str(root / "images"), "--text-emb", str(root / "texts")]


def run(parts: list[str], out: Path, *more: str) -> int:
    return main(["audit", *parts, "-o", str(out), "--by-shard", *more])


def test_the_last_screen_says_what_was_found(parts: list[str], tmp_path: Path, capsys) -> None:
    assert run(parts, tmp_path / "out", "--sample", "500") == 0
    said = capsys.readouterr().out
    assert "3 shards, from 000 to 002" in said
    assert "going on after" not in said
    assert "of 600 judged pairs are called mismatches" in said
    assert f"srem export {tmp_path / 'out'} --what keep-list -o keep.txt" in said
    assert run(parts, tmp_path / "out", "--sample", "500") == 0
    assert "was complete already" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "out"), "-o", str(tmp_path / "keep.txt")]) == 0
    assert len((tmp_path / "keep.txt").read_text().splitlines()) > 300


def test_tasks_say_what_is_missing_and_a_plain_command_ends_it(
    parts: list[str], tmp_path: Path, capsys
) -> None:
    assert run(parts, tmp_path / "out", "--task", "0", "--of", "2") == 0
    assert "1 shard still lacks its features (001): they belong to other tasks" in capsys.readouterr().out
    assert not (tmp_path / "out" / "pairs.parquet").exists()
    assert run(parts, tmp_path / "out", "--task", "1", "--of", "2") == 0
    assert "2 shards still lack their verdicts (000, 002)" in capsys.readouterr().out
    assert run(parts, tmp_path / "out") == 0
    assert run(parts, tmp_path / "whole") == 0
    first, second = (parquet.read_table(tmp_path / name / "pairs.parquet") for name in ("out", "whole"))
    assert first.equals(second)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--by-shard"], "--by-shard takes a folder or pattern of shards"),
        (["--by-shard", "--image-emb", "x.npy"], "--by-shard takes a folder or pattern of shards"),
        (["--by-shard", "--run", "runs/x"], "--by-shard takes a folder or pattern of shards"),
        (["nowhere.tar", "--by-shard"], "nowhere.tar does not exist"),
        (["x.csv", "--by-shard", "--task", "1"], "--task and --of go together"),
        (["x.csv", "--by-shard", "--task", "2", "--of", "2"], "--task must be a number from 0 to 1"),
        (["x.csv", "--task", "0", "--of", "2"], "--task is for large collections; add --by-shard"),
        (["x.csv", "--by-shard", "--words"], "--words looks at all pairs at once"),
        (["x.csv", "--engine", "ray"], "--engine is for large collections; add --by-shard"),
    ],
)
def test_mistakes_are_sentences(arguments: list[str], sentence: str, capsys) -> None:
    assert main(["audit", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_columns_of_tar_shards_and_an_empty_sample_are_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.tar").write_bytes(b"")
    assert main(["audit", str(tmp_path), "--by-shard", "--text", "title"]) == 2
    assert "name the tar shards that are meant with a pattern" in capsys.readouterr().err
    assert main(["audit", str(tmp_path), "--by-shard", "--sample", "0"]) == 2
    assert "the sample must hold 1 pair or more, got 0" in capsys.readouterr().err


def test_ctrl_c_leaves_everything_and_says_how_to_go_on(
    parts: list[str], tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sremkit.audit.by_shard import engines

    def interrupted(work, plan, numbers):
        yield from engines.plain(work, plan, numbers[:1])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setitem(engines.ENGINES, "plain", interrupted)
        assert run(parts, tmp_path / "out") == 130
    assert f"kept in {tmp_path / 'out'}; the same command goes on from here" in capsys.readouterr().out
    assert run(parts, tmp_path / "out") == 0
