"""Metrics in Prometheus' format, and one JSON line on stderr for each request."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sremkit.extras import require
from sremkit.web.security import ASGIApp, Message, Receive, Scope, Send

LATENCY_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32)
KNOWN_PATHS = ("/", "/search", "/score", "/health", "/metrics", "/openapi.json")  # others count as "other"
logger = logging.getLogger("sremkit.serve")


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        client = require("prometheus_client", extra="serve", purpose="count requests")
        self._client = client
        self.registry = client.CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = client.Counter(
            "sremkit_http_requests", "HTTP requests, by path and status", ["path", "status"], **own
        )
        self.latency = client.Histogram(
            "sremkit_http_request_seconds", "Seconds to the end of a response", ["path"], buckets=LATENCY_BUCKETS, **own
        )
        self.batch_size = client.Histogram(
            "sremkit_batch_size", "Queries computed together", buckets=BATCH_BUCKETS, **own
        )
        self.waiting = client.Gauge("sremkit_waiting_queries", "Queries that wait for the model", **own)
        self.images = client.Gauge("sremkit_indexed_images", "Images in the index", **own)

    def render(self) -> tuple[bytes, str]:
        """The metrics as text, and its content type."""
        return self._client.generate_latest(self.registry), self._client.CONTENT_TYPE_LATEST


class MonitoringMiddleware:
    """Counts, times and logs every request; texts and tokens are not logged."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, log: Callable[..., object]) -> None:
        self.app = app
        self.metrics = metrics
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, num_bytes = time.perf_counter(), 500, 0

        async def watched_send(message: Message) -> None:
            nonlocal status, num_bytes
            if message["type"] == "http.response.start":
                status = message["status"]
            num_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, watched_send)
        finally:
            seconds = time.perf_counter() - started
            path = scope["path"] if scope["path"] in KNOWN_PATHS else "other"
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.latency.labels(path).observe(seconds)
            self.log(
                "request",
                method=scope["method"],
                path=scope["path"][:200],
                status=status,
                ms=round(1000 * seconds, 2),
                bytes=num_bytes,
            )


def log_event(event: str, **values: Any) -> None:
    """Log an event with values, as one JSON line if `log_as_json` is set up."""
    logger.info(event, extra={"values": values})


def log_as_json() -> dict[str, Any]:
    """A logging configuration for uvicorn that writes all records to stderr as JSON lines."""
    handler = {"class": "logging.StreamHandler", "formatter": "json", "stream": sys.stderr}
    levels = {"sremkit.serve": "INFO", "sremkit.web": "WARNING", "uvicorn": "INFO"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": JSONFormatter}},
        "handlers": {"stderr": handler},
        "loggers": {
            name: {"handlers": ["stderr"], "level": level, "propagate": False} for name, level in levels.items()
        },
    }


class JSONFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "values", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)
