"""Requests to `srem review` and `srem serve`: answered with a sentence and a policy; none is an error of the server."""

from __future__ import annotations

import asyncio
import atexit
import base64
import functools
import io
import json
import logging
import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from hostile.harness import template
from layouts import image_bytes

NESTED, DIGITS = b"[" * 100_000, b"9" * 5000
SURROGATE = b'"a \\ud800 b"'


@dataclass(frozen=True, eq=False)
class RequestCase:
    """One row of the table.

    Args:
        app: "review" or "search".
        says: what the answer must contain.
        status: of the answer; 0 where any below 500 will do.
    """

    app: str
    method: str
    path: str
    says: str
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, bytes], ...] = ()

    def __str__(self) -> str:
        return f"{self.app}: {self.method} {self.path[:60]} {self.body[:60]!r} {self.headers}"[:150]

    def attempt(self) -> str:
        """Send it; returns what is wrong, or nothing."""
        status, body, log = answer(self)
        if status >= 500 or log:
            return f"traceback: {status} {body!r} {log}"
        if self.status and status != self.status:
            return f"status {status} instead of {self.status}: {body[:500]!r}"
        return "" if self.says.encode() in body else f"{self.says!r} is not in {body[:500]!r}"


def answer(case: RequestCase) -> tuple[int, bytes, str]:
    """Status, body, and what the server logs as an error."""
    path, _, query = case.path.partition("?")
    headers = {
        "host": b"127.0.0.1",
        **({"content-type": b"application/json"} if case.body else {}),
        **dict(case.headers),
    }
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": case.method,
        "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode("latin-1"),
        "headers": [(name.encode(), value) for name, value in headers.items()], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80), "root_path": "",
    }  # fmt: skip
    received, sent = [{"type": "http.request", "body": case.body}], []

    async def receive() -> MutableMapping[str, Any]:
        return received.pop() if received else {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    log = io.StringIO()
    handler, logger = logging.StreamHandler(log), logging.getLogger("sremkit.web")
    logger.addHandler(handler)
    try:
        asyncio.run(_app(case.app)(scope, receive, send))
    finally:
        logger.removeHandler(handler)
    if b"content-security-policy" not in dict(sent[0]["headers"]):
        log.write("no content-security-policy")
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]), log.getvalue()


@functools.cache
def _app(name: str) -> Any:
    """A review of 40 pairs, or the search in a small run."""
    if name == "search":
        from sremkit.search.index_folder import open_index
        from sremkit.search.server.app import build_app

        return build_app(open_index(template("index") / "run"), threads=1)
    from reviewed_audits import open_review, write_audit

    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return open_review(write_audit(folder / "data"))


def cases() -> Iterator[RequestCase]:
    yield from _decisions()
    yield from _reading()
    yield from _headers()
    yield from _searches()
    yield from _scores()


def _decisions() -> Iterator[RequestCase]:
    good = {"row": 1, "action": "keep", "client": "a"}
    no_json = {b"x": 422, b"[": 422, NESTED: 400, b"\xff": 400, b"": 422, b"[]": 422, b"null": 422, b"3": 422}
    for path in ("/api/decide", "/api/undo"):
        for body, status in no_json.items():
            yield RequestCase("review", "POST", path, "detail", status, body)
        yield RequestCase("review", "POST", path, "unable to parse raw data", 422, b'{"client": %s}' % SURROGATE)
        yield RequestCase("review", "POST", path, "Field required", 422, b'{"\\ud800": 1}')
    for row, says in {b"NaN": "finite number", b"1e400": "finite number", b'"x"': "valid integer", b"null": "valid",
                      b"1.5": "valid integer", b"-1": "no such row", b"40": "no such row", b"[1]": "valid integer",
                      b"%d" % 2**63: "no such row", b"9" * 30: "no such row", DIGITS: "parsing"}.items():  # fmt: skip
        body = b'{"row": %s, "action": "keep", "client": "a"}' % row
        yield RequestCase("review", "POST", "/api/decide", says, 0, body)
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"action": "zz"}, "keep"), ({"action": ["keep"]}, "keep"), ({"action": "edit"}, "must not be empty"),
        ({"action": "edit", "text": " \n"}, "must not be empty"), ({"text": "a" * 5001}, "at most 5000"),
        ({"text": 3}, "valid string"), ({"client": ""}, "at least 1"), ({"client": "a" * 65}, "at most 64"),
        ({"client": 3}, "valid string"), ({"row": 39, "action": "accept"}, "no caption is suggested"),
    )  # fmt: skip
    for change, says in changes:
        body = json.dumps({**good, **change}).encode()
        yield RequestCase("review", "POST", "/api/decide", says, 0, body)
    body = b'{"row": 1, "action": "edit", "text": %s, "client": "a"}' % SURROGATE
    yield RequestCase("review", "POST", "/api/decide", "unable to parse raw data", 422, body)
    for method in ("GET", "PUT", "DELETE", "TRACE", "ZZ"):
        yield RequestCase("review", method, "/api/decide", "Method Not Allowed", 405)


def _reading() -> Iterator[RequestCase]:
    for query, says in {"show=x": "is no such filter", "order=%00": "is no such filter", "low=nan": "between 0 and 1",
                        "low=-inf": "between 0 and 1", "low=1e400": "between 0 and 1", "low=x": "valid number",
                        "low=0.5&high=0.1": "between 0 and 1", "issue=__class__": "is no such filter",
                        "query=" + "a" * 501: "at most 500", "query=%ff": "total", "query=%00": "total",
                        "decided=%ed%a0%80": "is no such filter", "&" * 10_000: "total"}.items():  # fmt: skip
        yield RequestCase("review", "GET", f"/api/rows?{query}", says, 0)
    for query, says in {"": "Field required", "rows=": "separated by commas", "rows=1,,2": "separated by commas",
                        "rows=1e3": "separated by commas", "rows=" + "9" * 3000: "no such row",
                        "rows=-1": "no such row",
                        "rows=" + "9" * 5000: "at most 4000", "rows=" + "1," * 200 + "1": "at most 200",
                        }.items():  # fmt: skip
        yield RequestCase("review", "GET", f"/api/pairs?{query}", says, 0)
    for path, says in {"/api/changes?since=-1": "greater", "/api/changes?since=99999999999999999999": "less than",
                       "/image/k/-1/small": "no such row", "/image/k/1/huge": "small", "/image/k/30/small?better=1":
                       "cannot be shown", f"/image/k/{'9' * 30}/small": "no such row", f"/image/k/{'9' * 5000}/small":
                       "exceeded", "/image/..%2f..%2f/1/small": "Not Found", "/static/..%2fapp.py": "Not Found",
                       "/static/%2e%2e/app.py": "Not Found", "/static/%00": "Not Found",
                       "/common/../app.py": "Not Found",
                       "//etc/passwd": "Not Found", f"/static/{'a' * 5000}": "Not Found"}.items():  # fmt: skip
        yield RequestCase("review", "GET", path, says, 0)


def _headers() -> Iterator[RequestCase]:
    body = b'{"row": 1, "action": "keep", "client": "a"}'
    loopback, other, unreadable = "loopback address alone", "another site", "cannot be read"
    for name, value, status, says in (
        ("host", b"", 403, loopback), ("host", b"evil.example", 403, loopback), ("host", b"\xff", 403, loopback),
        ("host", b"127.0.0.1@evil", 403, loopback), ("host", b"127.0.0.1:99999", 400, unreadable),
        ("host", b"[::1", 400, unreadable), ("content-length", b"x", 400, unreadable),
        ("content-length", b"9" * 5000, 400, unreadable), ("content-length", b"99000000", 413, "more than"),
        ("origin", b"http://evil.example", 403, other), ("origin", b"null", 403, other),
        ("origin", b"http://[::1", 403, other), ("sec-fetch-site", b"cross-site", 403, other),
        ("sec-fetch-site", b"same-site", 403, other), ("content-type", b"text/plain", 422, "valid dictionary"),
        ("content-type", b"\xff", 422, "valid dictionary"),
    ):  # fmt: skip
        yield RequestCase("review", "POST", "/api/decide", says, status, body, ((name, value),))


def _searches() -> Iterator[RequestCase]:
    for body, says in {b"": "Field required", b"[]": "valid dictionary", b"{}": "give either text or image", NESTED:
                       "parsing", b'{"text": NaN}': "valid string", b'{"text": %s}' % SURROGATE: "unable to parse",
                       b'{"\\ud800": "a"}': "unable to parse", b'{"text": "a", "k": NaN}': "finite",
                       b'{"text": "a", "k": 1e400}': "finite", b'{"text": "a", "k": %s}' % DIGITS: "parsing",
                       b'{"text": "a", "k": 0}': "greater", b'{"text": "a", "k": 101}': "less", b'{"text": " "}':
                       "is empty", b'{"text": ["a"]}': "valid string", b'{"text": "a", "zz": 1}': "Extra",
                       b'{"text": "%s"}' % (b"a" * 2001): "at most 2000"}.items():  # fmt: skip
        yield RequestCase("search", "POST", "/search", says, 0, body)
    for text in ("\0", "\u202e\u200b", "😀" * 1000, "a " * 1000, "<script>", "{{7*7}}"):
        yield RequestCase("search", "POST", "/search", "results", 200, json.dumps({"text": text}).encode())
    large, undecodable = "more than 100,000,000 pixels", "cannot be decoded"
    png = image_bytes()
    images = {
        "of 10^10 pixels": (_png(10**5, 10**5), large), "of 2^31 columns": (_png(2**31 - 1, 1), large),
        "of no pixels": (_png(0, 0), undecodable), "cut in its header": (png[:30], undecodable),
        "a PostScript program": (b"%!PS-Adobe-3.0 EPSF-3.0\n", undecodable), "SVG": (b"<svg/>", undecodable),
        "a header of WebP alone": (b"RIFF\xff\xff\xff\xffWEBPVP8L\xff\xff\xff\xff", undecodable),
        "PPM": (b"P6 99999999999 99999999999 255\n", undecodable), "nothing": (b"\0", undecodable),
    }  # fmt: skip
    for content, says in images.values():  # the key is the reader's
        body = json.dumps({"image": base64.b64encode(content).decode()}).encode()
        yield RequestCase("search", "POST", "/search", says, 400, body)
    for image, says in {"!": "not valid base64", "é": "not valid base64", "AAAAA": "not valid base64", "data:,":
                        undecodable, "": "at least 1"}.items():  # fmt: skip
        yield RequestCase("search", "POST", "/search", says, 0, json.dumps({"image": image}).encode())
    for query, says in {"": "required", "text=": "at least 1", "text=%20": "is empty", "text=a&k=x": "integer",
                        f"text=a&k={'9' * 5000}": "exceeded", "text=a&k=-1": "greater", "text=%ff": "results",
                        "text[]=a": "required"}.items():  # fmt: skip
        yield RequestCase("search", "GET", f"/search?{query}", says, 0)
    for path, says in {"/images/-1": "greater", "/images/x": "integer", f"/images/{'9' * 30}": "less than",
                       "/images/2147483647": "no such image", "/images/0/../../x": "Not Found", "/docs": "Not Found",
                       "/static/%2e%2e/app.py": "Not Found"}.items():  # fmt: skip
        yield RequestCase("search", "GET", path, says, 0)


def _scores() -> Iterator[RequestCase]:
    known = {"text": "a", "image_id": "train/00000"}
    for pairs, says in (
        ([], "at least 1"), (None, "valid list"), ({}, "valid list"), ([{}], "required"), ([known] * 65, "at most 64"),
        ([{"text": "a"}], "either image or image_id"), ([{**known, "image": "AA"}], "either image or image_id"),
        ([{**known, "text": " "}], "is empty"), ([{**known, "image_id": "../../etc/passwd"}], "there is no image"),
        ([{**known, "image_id": "\0"}], "there is no image"), ([{**known, "image_id": 3}], "valid string"),
        ([known, {**known, "image_id": "nowhere"}], "there is no image 'nowhere'"),
    ):  # fmt: skip
        yield RequestCase("search", "POST", "/score", says, 0, json.dumps({"pairs": pairs}).encode())
    body = b'{"pairs": [{"text": "a", "image_id": %s}]}' % SURROGATE
    yield RequestCase("search", "POST", "/score", "unable to parse raw data", 422, body)


def _png(width: int, height: int) -> bytes:
    """A PNG file that claims this size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
