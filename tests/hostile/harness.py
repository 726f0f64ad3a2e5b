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
from typing import Any
from unittest import mock

import numpy as np

from fake_encoders import FakeImages, FakeSentences
from sremkit.audit import audit as audit_module
from sremkit.audit.embed import Encoders, score_pairs
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

    def attempt(self) -> str:
        """Prepare and run it in a folder of its own; returns what is wrong, or nothing."""
        with tempfile.TemporaryDirectory() as folder, inside(Path(folder)) as here:
            self.prepare(here)
            problem = run_command(self.command).problem(self)
            if not problem:
                try:
                    self.check(here)
                except AssertionError as wrong:
                    return f"afterwards: {wrong}"
            return problem


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


def run_command(arguments: Sequence[str], scorer: Any = None) -> Result:
    """`srem` in this process, as from a shell; encoders and scorer of audits are small stand-ins."""
    output = io.StringIO()
    default = classmethod(lambda cls: Encoders(FakeImages(), FakeSentences()))
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        warnings.catch_warnings(),
        mock.patch.object(audit_module, "score_pairs", scorer or StandInScorer()),
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
def template(kind: str) -> Path:
    """A good folder of a kind of `TEMPLATES`, made once."""
    root = Path(tempfile.mkdtemp(prefix="hostile-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    with inside(root):
        TEMPLATES[kind](root)
    return root


def _make_audit(root: Path) -> None:
    write_pairs(root)
    _run([*AUDIT, "-o", "audit"])


def _make_run(root: Path) -> None:
    shutil.copytree(OLD_FOLDERS / "features", root / "features")
    _run(["train", "features-dual-srem", "-o", "run", *settings(*SETTINGS)])


def _make_stopped_run(root: Path) -> None:
    """After two of three epochs."""
    _make_run(root)
    (root / "run" / "report.html").unlink()
    config = root / "run" / "config.toml"
    config.write_text(config.read_text().replace("\nepochs = 1\n", "\nepochs = 2\n"))


def _make_vectors(root: Path) -> None:
    """An audit by the real scorer, which keeps its models, and vectors of 20 more pairs."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((620, 8)).astype(np.float32)
    texts = (images @ rng.standard_normal((8, 6))).astype(np.float32)
    for name, rows in (("x", images), ("y", texts)):
        np.save(root / f"{name}.npy", rows[:600])
        np.save(root / f"{name}2.npy", rows[600:])
    _run(["audit", "--image-emb", "x.npy", "--text-emb", "y.npy", "-o", "audit"], score_pairs)


def _make_index(root: Path) -> None:
    """A run on scenes with its search index, and the model exported."""
    small = ("data.train_options.num_scenes=12", "data.options.num_scenes=6", "training.epochs=1",
             "training.warmup_epochs=1", "training.batch_size=16", "training.decay_after=1", "model.name=vse-infty",
             "model.embed_size=8", "model.word_dim=4")  # fmt: skip
    _run(["train", "scenes-srem", "-o", "run", *settings(*small)])
    _run(["index", "run"])
    _run(["export-model", "run", "-o", "model"])


def _make_clip(root: Path) -> None:
    """A small CLIP folder, and pairs with images."""
    from pretrained_models import save_model
    from pretrained_models import write_pairs as write_colors

    save_model(root / "clip", "clip")
    write_colors(root / "data", 15)


def _run(arguments: Sequence[str], scorer: Any = None) -> None:
    result = run_command(arguments, scorer)
    assert result.code == 0, result


TEMPLATES: dict[str, Callable[[Path], None]] = {
    "audit": _make_audit,
    "run": _make_run,  # finished
    "stopped": _make_stopped_run,
    "vectors": _make_vectors,
    "index": _make_index,
    "clip": _make_clip,
}


def good(kind: str) -> Callable[[Path], Path]:
    """Prepares a copy of a folder of `TEMPLATES`."""

    def prepare(folder: Path) -> Path:
        source = template(kind)
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
