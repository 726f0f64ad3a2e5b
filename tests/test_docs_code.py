"""The Python blocks of the README and of docs/ run, the notebooks run, and the commands of the pages parse.

The blocks of a page run in order. A comment `<!-- setup ... -->` holds code that the page does not show, and
`<!-- continues PAGE -->` says that a page uses the files of another page or notebook, after which it runs. A block that
cannot run here says why: ```python skip="needs Flickr30K"
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sremkit.cli.main import build_parser

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")])
NOTEBOOKS = sorted((REPOSITORY / "docs").rglob("*.ipynb"))
BLOCK = re.compile(r"<!-- setup\n(?P<setup>.*?)-->|^```(?P<fence>[^\n]*)\n(?P<code>.*?)^```$", re.M | re.S)
CONTINUES = re.compile(r"<!-- continues (\S+) -->")
SKIP = re.compile(r'python skip="[^"]{8,}"')
HISTORY = ("lab.md", "decisions.md", "deviations.md")  # commands as they were then
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

#: Runs pages, each with names of its own, in one process, and prints the traceback of each page that fails. Worker
#: processes import this file too, so it does nothing there.
RUNNER = """
import json, pathlib, sys, traceback
if __name__ == "__main__":
    failed = {}
    for name, code in json.loads(pathlib.Path("pages.json").read_text()).items():
        try:
            exec(compile(code, name, "exec"), {"__name__": "__main__"})
        except BaseException:
            failed[name] = traceback.format_exc()
    print("\\n".join(failed.values()), file=sys.stderr)
    sys.exit(len(failed) > 0)
"""


def name_of(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def blocks(page: Path) -> list[re.Match[str]]:
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


def python_of(page: Path) -> str:
    """The code of a page, each block at its line, so that a traceback shows where it is."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for match in blocks(page):
        group = "setup" if match["setup"] is not None else "code" if match["fence"] == "python" else None
        if group is not None:
            first = text.count("\n", 0, match.start(group))
            block = match[group].rstrip("\n").split("\n")
            lines[first : first + len(block)] = block
    return "\n".join(lines)


def run_pages(pages: list[Path], folder: Path) -> None:
    """Run pages in one process in this folder."""
    (folder / "pages.json").write_text(json.dumps({name_of(page): python_of(page) for page in pages}))
    (folder / "runner.py").write_text(RUNNER)
    command = [sys.executable, "runner.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-4000:]


def run_notebook(notebook: Path, folder: Path) -> None:
    """Execute a notebook in this folder; a cell that raises fails the test."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.read(notebook, as_version=4)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(folder)}}).execute(env=ENVIRONMENT)


WITH_PYTHON = [page for page in PAGES if python_of(page).strip()]
#: The page or notebook that a page continues.
BASES = {page: match[1] for page in WITH_PYTHON if (match := CONTINUES.search(page.read_text(encoding="utf-8")))}
CONTINUED = sorted(set(BASES.values()) | {name_of(notebook) for notebook in NOTEBOOKS})


def test_the_python_blocks_of_the_pages_run(tmp_path: Path) -> None:
    alone = [page for page in WITH_PYTHON if page not in BASES and name_of(page) not in CONTINUED]
    assert len(alone) > 10
    run_pages(alone, tmp_path)


@pytest.mark.filterwarnings("default")  # of Jupyter's packages
@pytest.mark.parametrize("base", CONTINUED)
def test_a_notebook_or_page_and_the_pages_that_continue_it_run(base: str, tmp_path: Path) -> None:
    first, others = REPOSITORY / base, [page for page, other in BASES.items() if other == base]
    if first.suffix == ".ipynb":
        run_notebook(first, tmp_path)
    if others or first.suffix == ".md":
        run_pages([*([first] if first.suffix == ".md" else []), *others], tmp_path)


def test_every_python_block_runs_or_says_why_not() -> None:
    fences = [match["fence"] for page in PAGES for match in blocks(page) if match["fence"]]
    python = [fence for fence in fences if fence.startswith("py")]
    assert len(python) > 15
    assert [fence for fence in python if fence != "python" and not SKIP.fullmatch(fence)] == []
    assert {name_of(page) for page in WITH_PYTHON} >= {"README.md", "docs/start/loss.md", "docs/howto/own-method.md"}


def commands(page: Path) -> list[str]:
    """The lines of code blocks that call srem."""
    lines = [line for match in blocks(page) if match["fence"] == "" for line in match["code"].splitlines()]
    return [line for line in lines if re.match(r"(torchrun [^#]*-m sremkit|srem) ", line)]


COMMANDS = [(name_of(page), line) for page in PAGES if page.name not in HISTORY for line in commands(page)]


def test_every_command_of_the_pages_parses() -> None:
    assert len(COMMANDS) > 30
    parser = build_parser()
    for page, line in COMMANDS:
        words = shlex.split(line.replace("$SLURM_ARRAY_TASK_ID", "0"), comments=True)
        start = words.index("sremkit") if words[0] == "torchrun" else 0
        try:
            parser.parse_args(words[start + 1 :])
        except SystemExit:
            pytest.fail(f"{page}: {line}")


def test_the_search_finds_blocks_setups_and_skips(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '<!-- setup\nx = 1\n-->\n```python\ny = x\n```\n```\nsrem list\n```\n```python skip="no GPU here"\nz\n```\n'
    )
    assert python_of(page).split() == ["x", "=", "1", "y", "=", "x"]
    assert commands(page) == ["srem list"]
    assert SKIP.fullmatch(blocks(page)[-1]["fence"])
    assert not SKIP.fullmatch('python skip=""')


def test_a_page_that_fails_is_reported_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\nassert x == 2\n```\n")
    monkeypatch.setitem(globals(), "REPOSITORY", tmp_path)
    with pytest.raises(AssertionError, match=r'File "page.md", line 5'):
        run_pages([page], tmp_path)
