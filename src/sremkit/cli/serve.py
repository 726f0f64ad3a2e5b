"""Serve search over HTTP: a page in the browser, and an API for programs.

srem serve runs/mine
srem serve runs/mine --port 9000 --no-browser
curl 'http://127.0.0.1:8765/search?text=a+dog+on+a+beach&k=5'

GET or POST /search, POST /score, GET /health, GET /metrics (Prometheus), GET /openapi.json. Requests that arrive
together are computed together. The server listens on this machine alone unless --host is given, and then requires the
token of the printed address. Logs are JSON lines on stderr. Ctrl-C or SIGTERM finishes the requests under way.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from sremkit.errors import UserError

HELP = "search over HTTP: a page and an API"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN_OR_AUDIT", help="folder of a trained run or a finished audit")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, help="port; 0 for any free one (default: the first free one from 8765 on)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds until a request is given up")
    parser.add_argument(
        "--threads", type=int, help="CPU threads of the model, and of the index (default: half of the cores each)"
    )


def run(args: argparse.Namespace) -> None:
    from sremkit.cli.index import open_or_build
    from sremkit.search.server.app import EXTRA, build_app
    from sremkit.search.server.monitoring import log_as_json
    from sremkit.web.security import is_loopback, new_token
    from sremkit.web.server import open_socket, serve

    if args.timeout <= 0:
        raise UserError(f"--timeout must be above 0, got {args.timeout:g}")
    if args.threads is not None and args.threads < 1:
        raise UserError(f"--threads must be 1 or more, got {args.threads}")
    bound = open_socket(args.host, args.port)  # a port in use is reported before the index is read
    try:
        searcher = open_or_build(args.folder)
        searcher.search_texts(["a photo"])  # loads the encoders before the first request
        token = None if is_loopback(args.host) else new_token()
        app = build_app(searcher, token=token, timeout=args.timeout, threads=args.threads)
        prepare_for_latency()
        serve(
            app,
            bound,
            host=args.host,
            token=token,
            name=f"search in {args.folder}",
            open_browser=not args.no_browser and sys.stdout.isatty(),
            extra=EXTRA,
            log_config=log_as_json(),
        )
    finally:
        bound.close()


def prepare_for_latency() -> None:
    """Settings of this process under which no request waits long for another thread's Python code.

    A full garbage collection goes through the objects of all libraries and stops every thread; what is there now is
    exempted. A thread that wants to run Python code asks for it after a millisecond in place of five.
    """
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(0.001)
