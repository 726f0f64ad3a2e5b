"""Stopping politely: the first Ctrl-C or SIGTERM asks the loop to save and end, a second one ends it."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StopRequest:
    """Watches for Ctrl-C and SIGTERM while it is entered; `requested` tells whether one came."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # signals reach no other thread
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
