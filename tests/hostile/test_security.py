"""Nothing is let in: no pickle, no formulas in exports, no links followed, files with the user's umask."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

import sremkit
from hostile.harness import AUDIT, OLD_FOLDERS, SETTINGS, good, inside, run_command, settings, write_pairs
from sremkit.io import atomic_write
from sremkit.web.security import HEADERS

SOURCE = Path(sremkit.__file__).parent
RUNS_CODE = re.compile(
    r"^\s*(import|from) (?!pickle import UnpicklingError$)(pickle|cloudpickle|marshal|shelve|dill|joblib)\b|"
    r"allow_pickle\s*=\s*True|read_pickle|yaml\.(unsafe_)?load\(|"
    r"torch\.load\((?!.*weights_only=True)|(?<![\w.`])(eval|exec)\(",
    re.M,
)


def test_no_file_of_ours_is_loaded_by_running_code() -> None:
    found = {str(file): RUNS_CODE.findall(file.read_text(encoding="utf-8")) for file in SOURCE.rglob("*.py")}
    assert {file: lines for file, lines in found.items() if lines} == {}


def test_the_search_finds_what_runs_code() -> None:
    for line in ("import pickle", "from pickle import UnpicklingError, loads", "from pickle import loads",
                 "np.load(x, allow_pickle=True)", "torch.load(path)", "torch.load(path, weights_only=False)",
                 "x = eval(text)", "import joblib", "import shelve", "pandas.read_pickle(x)", "yaml.load(text)",
                 "torch.load(\n    path, weights_only=False)"):  # fmt: skip
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


@pytest.mark.parametrize("page", ["review/static/index.html", "search/server/static/search.html"])
def test_served_pages_have_no_script_or_style_of_their_own(page: str) -> None:
    """Their policy comes as a header with every answer, which allows neither."""
    text = (SOURCE / page).read_text(encoding="utf-8")
    assert "content-security-policy" in HEADERS
    assert "unsafe-inline" not in HEADERS["content-security-policy"]
    assert re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", text) is None


def test_no_other_page_is_written() -> None:
    """A new page joins the tests above."""
    known = {"base.html", "index.html", "search.html"}
    assert {file.name for file in SOURCE.rglob("*.html") if "<html" in file.read_text(encoding="utf-8")} == known
    written = [file for file in SOURCE.rglob("*.py") if "<html" in file.read_text(encoding="utf-8")]
    assert [file.relative_to(SOURCE).as_posix() for file in written] == ["bench/tables.py"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize("kind", ["run", "audit"])
def test_every_file_and_folder_has_the_users_umask(tmp_path: Path, kind: str) -> None:
    before = os.umask(0o027)
    try:
        with inside(tmp_path):
            if kind == "audit":
                write_pairs(tmp_path)
                assert run_command([*AUDIT, "-o", "out"]).code == 0
            else:
                shutil.copytree(OLD_FOLDERS / "features", tmp_path / "features")
                assert run_command(["train", "features-dual-srem", "-o", "out", *settings(*SETTINGS)]).code == 0
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "out").rglob("*")}
    assert {path.name: oct(mode) for path, mode in modes.items() if mode != (0o750 if path.is_dir() else 0o640)} == {}


@pytest.mark.parametrize("kind", ["stopped", "audit"])
def test_a_folder_with_a_link_that_leads_out_of_it_is_refused(tmp_path: Path, kind: str) -> None:
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    work.mkdir()
    elsewhere.mkdir()
    with inside(work):
        good(kind)(work)
        out, part = ("run", "statistics") if kind == "stopped" else ("audit", "features")
        shutil.rmtree(work / out / part, ignore_errors=True)
        (work / out / part).symlink_to(elsewhere)
        (work / "audit" / "summary.json").unlink(missing_ok=True)
        result = run_command(["train", "--resume", "run"] if kind == "stopped" else [*AUDIT, "-o", "audit"])
        assert result.code == 2
        assert f"{part} is a link that leads out of {out}" in result.output
        (work / out / part).unlink()
        (work / out / "within").symlink_to(work / out)  # leads nowhere else
        result = run_command(["train", "--resume", "run"] if kind == "stopped" else [*AUDIT, "-o", "audit"])
        assert result.code == 0, result
    assert list(elsewhere.iterdir()) == []


def test_an_export_is_not_written_through_a_link(tmp_path: Path) -> None:
    with inside(tmp_path):
        good("audit")(tmp_path)
        (tmp_path / "keep.txt").symlink_to(tmp_path / "elsewhere.txt")
        result = run_command(["export", "audit", "-o", "keep.txt"])
    assert result.code == 2
    assert "keep.txt exists already" in result.output
    assert not (tmp_path / "elsewhere.txt").exists()


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
