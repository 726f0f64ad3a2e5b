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

from sremkit.errors import DataError, UserError
from sremkit.io import digest

DECISIONS = "decisions.sqlite"
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
        try:
            self._database = sqlite3.connect(
                self.path, timeout=WAIT_SECONDS, check_same_thread=False, isolation_level=None
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            with self._transaction():
                for statement in SCHEMA.split(";"):
                    self._database.execute(statement)
        except sqlite3.Error as cause:
            raise UserError(
                f"decisions cannot be stored in {self.path} ({cause}); check that you may write to this folder and "
                "that its disk is not full"
            ) from cause

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
            row, *names, action_now, text_now = database.execute(
                "SELECT row, id, image, given, action, text FROM decisions WHERE pair = ?", (key,)
            ).fetchone()
            if (action_now, text_now) == (action, text):
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
            rows = database.execute("SELECT pair, action, text FROM decisions WHERE action IS NOT NULL").fetchall()
        return {pair: Decision(action, text) for pair, action, text in rows}

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
    if not path.is_file():
        return {}
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=WAIT_SECONDS)
        try:
            rows = database.execute("SELECT pair, action, text FROM decisions WHERE action IS NOT NULL").fetchall()
        finally:
            database.close()
    except sqlite3.Error as cause:
        raise DataError(
            f"the decisions in {path} cannot be read ({cause}); move the file away to go on without them"
        ) from cause
    return {pair: Decision(action, text) for pair, action, text in rows}


def decisions_of(pairs: Iterable[PairKey], decisions: Mapping[str, Decision]) -> list[Decision | None]:
    """The decision on each pair, or None."""
    return [decisions.get(pair.key) for pair in pairs] if decisions else [None for _ in pairs]
