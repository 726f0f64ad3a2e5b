"""Checks on every request of a local web application, and the headers of every response (ASGI middleware)."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sremkit.io import digest

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_BODY_BYTES = 1_000_000
HEADERS = {
    # Everything comes from this server, and no script or style stands in a page, so markup in a caption is inert.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # the address may contain the token
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # a page of another version or collection on the same port must not be taken
}
logger = logging.getLogger("sremkit.web")


def is_loopback(host: str) -> bool:
    """Whether a host name is this machine alone."""
    return host in LOOPBACK


def new_token() -> str:
    """A random token for addresses."""
    return secrets.token_urlsafe(24)


class RefusedError(Exception):
    """A request that is answered with an error status and a sentence."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class SecurityMiddleware:
    """Refuses requests of other sites and requests without the token; no response contains a traceback.

    - Without a token the `Host` header must name the loopback interface, so that a web page cannot reach the server
      through a domain name of its own (DNS rebinding).
    - With a token every request needs it: `?token=` in the address, a cookie that the first such request sets, or
      `Authorization: Bearer`.
    - Requests that may change something must come from the same origin. Programs other than browsers send neither
      `Origin` nor `Sec-Fetch-Site` and are accepted.
    - Bodies have at most `max_body_bytes`.
    """

    def __init__(self, app: ASGIApp, *, token: str | None = None, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.token = token
        self.max_body_bytes = max_body_bytes
        # Cookies are shared by all ports of a host, so each token has a cookie of its own.
        self.cookie = "" if token is None else f"sremkit-{digest(token, length=8)}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await (self.app(scope, receive, send) if scope["type"] == "lifespan" else _close(send))
            return
        started, new_cookie = False, False
        received = 0

        async def limited_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            self._check_size(received)
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if not started:
                self._check_size(received)  # the app may have answered the exception itself
            if message["type"] == "http.response.start":
                started = True
                headers = [(name.lower(), value) for name, value in message.get("headers", [])]
                present = {name for name, _ in headers}
                own = {name.encode(): value.encode() for name, value in HEADERS.items()}
                headers += [(name, value) for name, value in own.items() if name not in present]
                if new_cookie:
                    cookie = f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                    headers.append((b"set-cookie", cookie.encode()))
                message = {**message, "headers": headers}
            await send(message)

        try:
            headers = _headers(scope)
            new_cookie = self._check(scope, headers)
            await self.app(scope, limited_receive, send_with_headers)
        except RefusedError as refusal:
            if started:
                raise
            received = 0
            await _answer(send_with_headers, refusal.status, refusal.detail)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if started:
                raise  # the client sees a cut off response
            await _answer(send_with_headers, 500, "this request failed; the terminal of the server states why")

    def _check(self, scope: Scope, headers: dict[str, str]) -> bool:
        """Refuse a request by an exception; return whether a cookie is to be set."""
        host = headers.get("host", "")
        try:
            hostname, _ = urlsplit(f"//{host}").hostname, urlsplit(f"//{host}").port
            length = int(headers.get("content-length", "0"))
        except ValueError:
            raise RefusedError(400, "the headers of the request cannot be read") from None
        self._check_size(length)
        new_cookie = False
        if self.token is None:
            if hostname is None or not is_loopback(hostname):
                raise RefusedError(403, "this server answers on the loopback address alone; open the printed address")
        else:
            in_address = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
            if not self._is_token(in_address):
                if not self._is_token(self._token_in(headers)):
                    raise RefusedError(401, "the token is missing or wrong; open the whole address that was printed")
            else:
                new_cookie = scope["method"] in SAFE_METHODS
        if scope["method"] not in SAFE_METHODS:
            _check_origin(headers, host)
        return new_cookie

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self.max_body_bytes:
            raise RefusedError(413, f"the request has more than {self.max_body_bytes:,} bytes")

    def _token_in(self, headers: dict[str, str]) -> str:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return credentials.strip()
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return ""
        return cookies[self.cookie].value if self.cookie in cookies else ""

    def _is_token(self, given: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(given.encode(), self.token.encode())


def _check_origin(headers: dict[str, str], host: str) -> None:
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    try:
        is_other = origin is not None and urlsplit(origin).netloc != host
    except ValueError:
        is_other = True
    if site not in (None, "same-origin", "none") or is_other:
        raise RefusedError(403, "the request comes from another site")


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def _close(send: Send) -> None:
    """Refuse a WebSocket."""
    await send({"type": "websocket.close", "code": 1008})


async def _answer(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
