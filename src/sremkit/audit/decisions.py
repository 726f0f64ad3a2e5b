"""Decisions of people on the pairs of an audit: an SQLite database in the audit's folder.

A decision belongs to a pair by its id, image and caption, so it stays valid when the audit is made again, and not
when the caption has changed. Every change is logged, so that it can be undone and other processes see it. Each change
is a transaction in write-ahead mode: after a kill, everything that was confirmed is there.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from sremkit.data.pairs import MISSING, Pairs
from sremkit.errors import DataError, UserError
from sremkit.io import check_version, digest

DECISIONS = "decisions.sqlite"
VERSION = 1  # of the database, as its user_version; the first ones have none
Action = Literal["keep", "drop", "edit", "accept"]
ACTIONS: tuple[Action, ...] = ("keep", "drop", "edit", "accept")  # the last two replace the caption
SCHEMA = """
CREATE TABLE IF NOT EXISTS decisions (
    pair TEXT PRIMARY KEY, row INTEGER, id TEXT, image TEXT, given TEXT, action TEXT, text TEXT, time TEXT
);
CREATE TABLE IF NOT EXISTS changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, pair TEXT NOT NULL, row INTEGER, action TEXT, text TEXT,
    action_before TEXT, text_before TEXT, client TEXT NOT NULL, undone INTEGER NOT NULL DEFAULT 0, time TEXT
);
"""
COLUMNS = {
    "decisions": ["pair", "row", "id", "image", "given", "action", "text", "time"],
    "changes": ["number", "pair", "row", "action", "text", "action_before", "text_before", "client", "undone", "time"],
}
WAIT_SECONDS = 10.0  # for a transaction of another process


class PairKey(NamedTuple):
    """What a decision belongs to."""

    id: str | None
    image: str | None
    text: str | None

    @property
    def key(self) -> str:
        return digest([self.id, self.image, self.text], length=24)


class Decision(NamedTuple):
    """What is to be done with a pair."""

    action: Action
    text: str | None = None  # the new caption, for "edit" and "accept"

    @property
    def is_match(self) -> bool | None:
        """Whether the given pair matches; None for an edited caption, which may have been nearly right."""
        return {"keep": True, "drop": False, "accept": False}.get(self.action)


class Change(NamedTuple):
    """A logged change of one decision; None where there is none."""

    number: int
    pair: str
    row: int
    decision: Decision | None


class Decisions:
    """The decisions of an audit folder, for reading and writing by several threads and processes.

    Args:
        folder: of the audit; the database is created there.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / DECISIONS
        self._lock = threading.Lock()
        _check_file(self.path)
        try:
            self._database = sqlite3.connect(
                self.path, timeout=WAIT_SECONDS, check_same_thread=False, isolation_level=None
            )
            if _has_decisions(self._database, self.path):
                _read(self._database, self.path)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            with self._transaction():
                for statement in SCHEMA.split(";"):
                    self._database.execute(statement)
                self._database.execute(f"PRAGMA user_version={VERSION}")
        except sqlite3.OperationalError as cause:
            raise UserError(
                f"decisions cannot be stored in {self.path} ({cause}); check that you may write to this folder and "
                "that its disk is not full"
            ) from cause
        except sqlite3.Error as cause:  # no database, or a damaged one
            raise _damaged(self.path, str(cause)) from cause

    def close(self) -> None:
        self._database.close()

    def decide(self, pair: PairKey, row: int, decision: Decision | None, *, client: str) -> Change:
        """Store a decision, or remove it; `client` is the browser tab, which can undo it."""
        if decision is not None and decision.action in ("edit", "accept") and not (decision.text or "").strip():
            raise UserError("a new caption must not be empty; drop the pair instead")
        with self._transaction():
            return self._change(pair, row, decision, client)

    def undo(self, client: str) -> Change | None:
        """Take back the latest change of a client that is not undone; None if there is none."""
        with self._transaction() as database:
            found = database.execute(
                "SELECT number, pair, action, text, action_before, text_before FROM changes "
                "WHERE client = ? AND undone = 0 ORDER BY number DESC LIMIT 1",
                (client,),
            ).fetchone()
            if found is None:
                return None
            number, key, action, text, action_before, text_before = found
            database.execute("UPDATE changes SET undone = 1 WHERE number = ?", (number,))
            stored = database.execute(
                "SELECT row, id, image, given FROM decisions WHERE pair = ? AND action IS ? AND text IS ?",
                (key, action, text),
            ).fetchone()
            if stored is not None:
                row, *names = stored
                before = None if action_before is None else Decision(action_before, text_before)
                return self._change(PairKey(*names), row, before, client, undone=1)
        raise UserError("this pair was changed elsewhere since; nothing was undone")

    def changes(self, since: int = 0) -> list[Change]:
        """The changes after a number, in order."""
        with self._reading() as database:
            rows = database.execute(
                "SELECT number, pair, row, action, text FROM changes WHERE number > ? ORDER BY number", (since,)
            ).fetchall()
        return [Change(n, pair, row, None if a is None else Decision(a, text)) for n, pair, row, a, text in rows]

    def read(self) -> dict[str, Decision]:
        """All decisions, by the key of the pair."""
        with self._reading() as database:
            return _read(database, self.path)

    def _change(self, pair: PairKey, row: int, decision: Decision | None, client: str, *, undone: int = 0) -> Change:
        """Write a decision and log the change, inside of a transaction. A change that undoes another has undone=1."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        new = (None, None) if decision is None else (decision.action, decision.text)
        database = self._database
        before = database.execute("SELECT action, text FROM decisions WHERE pair = ?", (pair.key,)).fetchone()
        database.execute(
            "INSERT OR REPLACE INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (pair.key, row, *pair, *new, now)
        )
        number = database.execute(
            "INSERT INTO changes (pair, row, action, text, action_before, text_before, client, undone, time) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (pair.key, row, *new, *(before or (None, None)), client, undone, now),
        ).lastrowid
        assert number is not None
        return Change(number, pair.key, row, decision)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._database
            except sqlite3.Error as cause:
                raise UserError(f"the decision was not stored in {self.path} ({cause}); try it again") from cause


def read_decisions(folder: Path) -> dict[str, Decision]:
    """The decisions of an audit by the key of the pair; none if no pair was reviewed."""
    path = folder / DECISIONS
    _check_file(path)
    if not path.exists():
        return {}
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=WAIT_SECONDS)
        try:
            return _read(database, path) if _has_decisions(database, path) else {}
        finally:
            database.close()
    except sqlite3.Error as cause:
        raise _damaged(path, str(cause)) from cause


def decisions_of(pairs: Iterable[PairKey], decisions: Mapping[str, Decision]) -> list[Decision | None]:
    """The decision on each pair, or None."""
    return [decisions.get(pair.key) for pair in pairs] if decisions else [None for _ in pairs]


def _check_file(path: Path) -> None:
    """Refuse a database that is no file, or is elsewhere."""
    for file in (path, *(path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm", "journal"))):
        if file.is_symlink():
            raise UserError(f"{file} is a link, so decisions would be written elsewhere; remove the link")
        if file.exists() and not file.is_file():
            raise _damaged(file, "it is no file")


def _has_decisions(database: sqlite3.Connection, path: Path) -> bool:
    """Whether the database holds decisions; one without tables is of a process that was killed when it began.

    A damaged one is refused, and one of a newer version.
    """
    check_version(database.execute("PRAGMA user_version").fetchone()[0] or None, newest=VERSION, where=path)
    parts = database.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
    if not parts:
        return False
    columns = {name: [row[1] for row in database.execute(f"PRAGMA table_info({name})")] for name in COLUMNS}
    if set(parts) != {("table", name) for name in COLUMNS} or columns != COLUMNS:
        raise _damaged(path, "its tables are others than those of `srem review`")
    (state,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise _damaged(path, state.splitlines()[-1])
    return True


def _read(database: sqlite3.Connection, path: Path) -> dict[str, Decision]:
    try:
        rows = database.execute("SELECT pair, action, text FROM decisions WHERE action IS NOT NULL").fetchall()
    except sqlite3.OperationalError as cause:
        if "UTF-8" not in str(cause):
            raise
        raise _damaged(path, "a text is not UTF-8") from cause
    for pair, action, text in rows:
        is_text = isinstance(text, str) or (text is None and action in ("keep", "drop"))
        if action not in ACTIONS or not is_text or not isinstance(pair, str):
            raise _damaged(path, f"a decision is {action!r:.40}, with the text {text!r:.40}")
    return {pair: Decision(action, text) for pair, action, text in rows}


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(f"the decisions in {path} cannot be read ({reason}); move the file away to go on without them")


def decisions_key(decisions: Mapping[str, Decision]) -> str | None:
    """Changes when a decision changes that labels a pair; None without one."""
    labels = {key: decision.is_match for key, decision in decisions.items() if decision.is_match is not None}
    return digest(sorted(labels.items())) if labels else None


def labels_of(pairs: Pairs, decisions: Mapping[str, Decision], *, has_texts: bool) -> np.ndarray:
    """The label of each pair, (m,) int64: 1 for a pair that was kept, 0 for one that was dropped or whose caption was
    replaced by the suggested one, MISSING otherwise."""
    images, texts = pairs.image_of_text.tolist(), pairs.texts if has_texts else [None] * len(pairs)
    keys = (PairKey(pairs.pair_ids[k], pairs.image_ids[images[k]], texts[k]) for k in range(len(pairs)))
    matches = [None if decision is None else decision.is_match for decision in decisions_of(keys, decisions)]
    return np.array([MISSING if match is None else int(match) for match in matches], dtype=np.int64)
