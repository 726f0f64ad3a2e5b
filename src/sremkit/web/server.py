"""Serve an app: choose a port, print the address, open a browser, and stop gracefully."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import threading
import time
import webbrowser
from typing import TYPE_CHECKING, Any

from sremkit.errors import UserError
from sremkit.extras import require
from sremkit.web.security import is_loopback

if TYPE_CHECKING:
    from fastapi import FastAPI

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8765
TRIED_PORTS = 20  # after the default one
GRACE_SECONDS = 5.0  # that requests under way have when the server is stopped


def open_socket(host: str = DEFAULT_HOST, port: int | None = None) -> socket.socket:
    """Bind a TCP socket.

    Args:
        port: 0 for any free port; by default the first free one from `DEFAULT_PORT` on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = range(DEFAULT_PORT, DEFAULT_PORT + TRIED_PORTS + 1) if port is None else [port]
    for number in ports:
        bound = socket.socket(family, socket.SOCK_STREAM)
        if os.name != "nt":  # on Windows the option would share a port that is in use
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, number))
            bound.listen(128)  # now, so that a second server notices the first
            return bound
        except OSError as cause:
            bound.close()
            problem = cause
        except OverflowError as cause:
            bound.close()
            raise UserError(f"--port {number} is no port; choose one from 1 to 65535, or 0 for any free one") from cause
        if problem.errno != errno.EADDRINUSE:
            break
    if problem.errno == errno.EADDRINUSE:
        which = f"port {port} is" if port is not None else f"the ports {ports[0]} to {ports[-1]} are"
        raise UserError(f"{which} in use; choose another with --port, or --port 0 for any free one") from problem
    if problem.errno == errno.EACCES:
        raise UserError(f"port {ports[0]} needs special rights; choose one above 1023 with --port") from problem
    reason = problem.strerror or str(problem)
    raise UserError(f"the address {host} cannot be used ({reason}); check --host") from problem


def address(bound: socket.socket, host: str, *, token: str | None = None) -> str:
    """The address to open in a browser."""
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{bound.getsockname()[1]}/" + ("" if token is None else f"?token={token}")


def serve(
    app: FastAPI,
    bound: socket.socket,
    *,
    host: str = DEFAULT_HOST,
    token: str | None = None,
    name: str = "the app",
    open_browser: bool = False,
    extra: str = "review",
    **options: Any,
) -> None:
    """Serve until Ctrl-C or SIGTERM; requests under way are finished first.

    Args:
        bound: of `open_socket`.
        token: that the app requires; it becomes part of the address.
        name: of the app, for the message.
        open_browser: open the address if this machine has a browser.
        options: of `uvicorn.Config`, such as `log_config`.
    """
    uvicorn = require("uvicorn", extra=extra, purpose="serve pages to a browser")
    settings = {"log_level": "warning", "access_log": False, "timeout_graceful_shutdown": GRACE_SECONDS, **options}
    server = uvicorn.Server(uvicorn.Config(app, server_header=False, **settings))
    url = address(bound, host, token=token)
    print(f"{name}: {url}   (stop with Ctrl-C)", flush=True)
    if not is_loopback(host):
        print("the token in the address gives access to the data; the connection is not encrypted", flush=True)
    if open_browser:
        if has_browser():
            threading.Thread(target=_open_when_started, args=(server, url), daemon=True).start()
        else:
            print("no browser was found on this machine; open the address in one", flush=True)
    # uvicorn stops gracefully and then raises the signal again, here as a KeyboardInterrupt; a shell's background job
    # ignores SIGINT, so none comes then.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[bound])
        print("stopped", flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)
        bound.close()


def has_browser() -> bool:
    """Whether a graphical browser can be opened; browsers of the terminal would take it over."""
    if sys.platform not in ("darwin", "win32") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def _open_when_started(server: Any, url: str) -> None:
    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.05)
    if not webbrowser.open(url):
        print("the browser could not be opened; open the address in one", flush=True)
