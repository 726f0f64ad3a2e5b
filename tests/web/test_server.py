"""Ports, addresses, and a server process that stops gracefully."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from sremkit.errors import UserError
from sremkit.web import server

SCRIPT = """
import time
from sremkit.web.app import create_app
from sremkit.web.server import open_socket, serve
app = create_app("test")
@app.get("/slow")
def slow():
    print("asked", flush=True)
    time.sleep(1)
    return "done"
serve(app, open_socket(port=0), name="the test", open_browser=True)
print("after")
"""


def test_a_named_port_in_use_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} is in use; choose another with --port"):
            server.open_socket(port=port)


def test_the_default_port_moves_on_when_it_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with server.open_socket(port=0) as first:
        taken = first.getsockname()[1]
        monkeypatch.setattr(server, "DEFAULT_PORT", taken)
        with server.open_socket() as second:
            assert taken < second.getsockname()[1] <= taken + server.TRIED_PORTS


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70000, "no port"),
        ("127.0.0.1", -1, "no port"),
        ("192.0.2.1", 0, "check --host"),
        ("no such", 0, "check"),
    ],
)
def test_unusable_addresses_are_sentences(host: str, port: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        server.open_socket(host, port)


def test_addresses() -> None:
    with server.open_socket(port=0) as bound:
        port = bound.getsockname()[1]
        assert server.address(bound, "127.0.0.1") == f"http://127.0.0.1:{port}/"
        assert server.address(bound, "::1") == f"http://[::1]:{port}/"
        assert server.address(bound, "0.0.0.0", token="t") == f"http://{socket.gethostname()}:{port}/?token=t"


@pytest.mark.alone
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("job", ["foreground", "background"])
def test_a_stopped_server_finishes_requests_and_says_so(stop: int, job: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    handler = "SIG_IGN" if job == "background" else "default_int_handler"  # shells let background jobs ignore SIGINT
    command = [sys.executable, "-c", f"import signal\nsignal.signal(signal.SIGINT, signal.{handler})\n{SCRIPT}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        url = re.fullmatch(r"the test: (http://127\.0\.0\.1:\d+/)   \(stop with Ctrl-C\)\n", first)
        assert url is not None, first
        assert process.stdout.readline() == "no browser was found on this machine; open the address in one\n"
        with urllib.request.urlopen(f"{url[1]}common/base.css") as answer:
            assert answer.status == 200
        reading = [sys.executable, "-c", f"import urllib.request as r; print(r.urlopen('{url[1]}slow').read())"]
        with subprocess.Popen(reading, stdout=subprocess.PIPE, text=True) as client:
            assert process.stdout.readline() == "asked\n"
            process.send_signal(stop)
            assert client.communicate(timeout=20)[0].strip() == "b'\"done\"'"
        assert process.stdout.read() == "stopped\nafter\n"
        assert process.wait(20) == 0
