"""Hostile inputs as a table: what is prepared, the command, the sentence that must come, without a traceback."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import re
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from fake_encoders import FakeImages, FakeSentences
from sremkit.audit import audit as audit_module
from sremkit.audit.embed import Encoders
from sremkit.cli.main import main
from stand_in_scorer import StandInScorer

OLD_FOLDERS = Path(__file__).parent / "folders-0.1.0"
SETTINGS = (
    "data.source=features", "training.epochs=1", "training.warmup_epochs=1", "training.batch_size=4",
    "training.decay_after=1", "training.ema_decay=0.9", "model.embed_size=2", "model.hidden_size=3",
)  # fmt: skip


MAX_SECONDS = 30  # of a command; one that takes longer counts as a crash


def nothing(folder: Path) -> None:
    """Prepare nothing."""


@dataclass(frozen=True, eq=False)
class Case:
    """One row of the table.

    Args:
        input: what is hostile, in words.
        command: arguments of `srem`, run in the prepared folder.
        says: a regular expression that the output must contain.
        prepare: writes the input into an empty folder.
        code: the exit status: 2 for a refusal, 0 where the work goes on; -1 where either will do.
        check: looks at the files afterwards, such as for lost rows.
    """

    input: str
    command: Sequence[str]
    says: str
    prepare: Callable[[Path], object] = nothing
    code: int = 2
    check: Callable[[Path], object] = nothing

    def __str__(self) -> str:
        return f"{self.input} -> srem {' '.join(self.command)}"[:150]


@dataclass(frozen=True)
class Result:
    """What a command did: the exit status, everything it printed, and the traceback that it would have shown."""

    code: int | None
    output: str
    traceback: str = ""

    def problem(self, case: Case) -> str:
        """What is wrong with it; empty if it is as the table says."""
        if self.traceback:
            return f"traceback: {self.traceback}"
        if case.code >= 0 and self.code != case.code:
            return f"exit status {self.code} instead of {case.code}: {self.output}"
        if re.search(case.says, " ".join(self.output.split())) is None:
            return f"the sentence {case.says!r} is not in: {self.output}"
        notices = [line for line in self.output.splitlines() if line.startswith("srem: ")]
        if len(notices) > len(set(notices)):
            return f"a notice comes twice: {self.output}"
        return ""


def try_case(case: Case) -> str:
    """Prepare and run one case in a folder of its own; returns what is wrong, or nothing."""
    with tempfile.TemporaryDirectory() as folder, inside(Path(folder)) as here:
        case.prepare(here)
        result = run_command(case.command)
        problem = result.problem(case)
        if not problem:
            try:
                case.check(here)
            except AssertionError as wrong:
                return f"afterwards: {wrong}"
        return problem


def run_command(arguments: Sequence[str]) -> Result:
    """`srem` in this process, as from a shell; encoders and scorer of audits are small stand-ins."""
    output = io.StringIO()
    default = classmethod(lambda cls: Encoders(FakeImages(), FakeSentences()))
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        warnings.catch_warnings(),
        mock.patch.object(audit_module, "score_pairs", StandInScorer()),
        mock.patch.object(Encoders, "default", default),
    ):
        warnings.simplefilter("always")
        warnings.showwarning = _show_warning  # pytest records warnings instead of showing them
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(MAX_SECONDS)
        try:
            code: int | None = main(list(arguments))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 2
        except BaseException as error:
            lines = traceback.format_exception(error)
            return Result(None, output.getvalue(), "".join(lines[-3:]))
        finally:
            signal.alarm(0)
    return Result(code, output.getvalue())


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    """As Python shows a warning outside of tests."""
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))  # type: ignore[arg-type]


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"the command takes longer than {MAX_SECONDS} s")


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[Path]:
    """The folder as working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)


@functools.cache
def _template(kind: str) -> Path:
    """A good folder, made once: "run" (finished), "stopped" (a run that has another epoch to go) or "audit"."""
    root = Path(tempfile.mkdtemp(prefix="hostile-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    with inside(root):
        if kind == "audit":
            write_pairs(root)
            result = run_command([*AUDIT, "-o", "audit"])
        else:
            shutil.copytree(OLD_FOLDERS / "features", root / "features")
            result = run_command(["train", "features-dual-srem", "-o", "run", *settings(*SETTINGS)])
        assert result.code == 0, result
        if kind == "stopped":  # after two of three epochs
            (root / "run" / "report.html").unlink()
            config = root / "run" / "config.toml"
            config.write_text(config.read_text().replace("\nepochs = 1\n", "\nepochs = 2\n"))
    return root


def good(kind: str) -> Callable[[Path], Path]:
    """Prepares a copy of a good folder; the run of "stopped" is called "run" as well."""

    def prepare(folder: Path) -> Path:
        source = _template(kind)
        shutil.copytree(source, folder, dirs_exist_ok=True)
        config = folder / "run" / "config.toml"
        if config.exists():
            config.write_text(config.read_text().replace(str(source), str(folder)))
        return folder

    return prepare


def damaged(kind: str, file: str, change: Callable[[Path], object]) -> Callable[[Path], None]:
    """Prepares a good folder and changes one file of it; `file` may be a pattern for the newest one."""

    def prepare(folder: Path) -> None:
        good(kind)(folder)
        found = sorted(folder.glob(file))
        change(found[-1] if found else folder / file)

    return prepare


def settings(*assignments: str) -> list[str]:
    return [part for assignment in assignments for part in ("--set", assignment)]


AUDIT = ("audit", "pairs.csv", "--image", "file", "--text", "title", "--id", "id", "--workers", "0")


def write_pairs(folder: Path) -> None:
    """Four images and pairs.csv, two of whose captions are wrong."""
    from layouts import write_image

    rows = ["id,file,title,split"]
    for k, color in enumerate(("red", "green", "blue", "white")):
        write_image(folder / f"{k}.png", color)
        rows.append(f"p{k},{k}.png,{'a wrong caption' if k < 2 else f'caption {k}'},train")
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
