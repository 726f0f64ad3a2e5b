"""A real server in a thread, and requests to it with every header under control."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from sremkit.web.server import open_socket


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Sends requests to a port of the loopback interface."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """Send a request; `x_y` in the name of a header stands for `X-Y`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body=body, headers=named)
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, **headers)

    def post(self, path: str, content: Any, **headers: str) -> Answer:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        return self.request("POST", path, body, **{"content_type": "application/json", **headers})


@contextmanager
def running(app: Any) -> Iterator[Client]:
    """Serve an app on a free port until the block ends."""
    import uvicorn

    bound = open_socket(port=0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield Client(bound.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
        bound.close()
