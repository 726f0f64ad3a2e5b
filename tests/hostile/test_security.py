"""Nothing is let in: no pickle, no formulas in exports, no links followed, files with the user's umask."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import sremkit
from hostile.harness import AUDIT, inside, run_command, write_pairs
from sremkit.io import atomic_write

SOURCE = Path(sremkit.__file__).parent
RUNS_CODE = re.compile(
    r"^\s*(import|from) (?!pickle import UnpicklingError$)(pickle|marshal|shelve|dill|joblib)\b|"
    r"allow_pickle\s*=\s*True|"
    r"torch\.load\((?!.*weights_only=True)|(?<![\w.`])(eval|exec)\(",
    re.M,
)


def test_no_file_of_ours_is_loaded_by_running_code() -> None:
    found = {str(file): RUNS_CODE.findall(file.read_text(encoding="utf-8")) for file in SOURCE.rglob("*.py")}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_the_search_finds_what_runs_code() -> None:
    for line in ("import pickle", "from pickle import UnpicklingError, loads", "from pickle import loads",
                 "np.load(x, allow_pickle=True)", "torch.load(path)", "torch.load(path, weights_only=False)",
                 "x = eval(text)"):  # fmt: skip
        assert RUNS_CODE.search(line), line
    assert not RUNS_CODE.search("matcher.eval()\nmodel.eval(x)")
    assert not RUNS_CODE.search("from pickle import UnpicklingError\ntorch.load(path, weights_only=True)")


@pytest.mark.parametrize("template", sorted((SOURCE / "reports" / "templates").rglob("*.html")), ids=lambda p: p.name)
def test_every_page_forbids_what_it_does_not_need(template: Path) -> None:
    text = template.read_text(encoding="utf-8")
    if "<html" in text:
        assert 'http-equiv="Content-Security-Policy"' in text
        assert "default-src 'none'" in text


def test_the_tables_of_a_bench_forbid_it_as_well() -> None:
    from sremkit.bench.tables import PAGE

    assert """Content-Security-Policy" content="default-src 'none'""" in PAGE


def test_csv_cells_do_not_begin_formulas_unless_asked(tmp_path: Path) -> None:
    captions = ["=1+1", "@SUM(A1)", "+cmd", "-2.5", "plain"]
    with inside(tmp_path):
        write_pairs(tmp_path)
        lines = [f"p{k},{k % 4}.png,{caption},train" for k, caption in enumerate(captions)]
        (tmp_path / "pairs.csv").write_text("\n".join(["id,file,title,split", *lines]) + "\n")
        assert run_command([*AUDIT, "-o", "audit"]).code == 0
        assert run_command(["export", "audit", "--format", "csv", "-o", "safe.csv"]).code == 0
        assert run_command(["export", "audit", "--format", "csv", "--formulas", "-o", "raw.csv"]).code == 0
    safe, raw = ([line.split(",")[2] for line in (tmp_path / name).read_text().split("\n")[1:-1]]
                 for name in ("safe.csv", "raw.csv"))  # fmt: skip
    assert raw == captions
    assert safe == ["'=1+1", "'@SUM(A1)", "'+cmd", "-2.5", "plain"]  # a number is no formula


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_files_have_the_users_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        atomic_write(tmp_path / "a.txt", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o600


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "precious.txt"
    target.write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.txt").symlink_to(target)
    (out / f".partial-{os.getpid()}-a.txt").symlink_to(target)
    atomic_write(out / "a.txt", "new")
    assert target.read_text() == "precious"
    assert not (out / "a.txt").is_symlink()
    assert (out / "a.txt").read_text() == "new"
