"""A free port for processes that talk to each other on this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port of the loopback interface that no process uses; a fixed one is taken where two suites run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
