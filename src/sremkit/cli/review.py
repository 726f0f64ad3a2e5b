"""Review an audit in the browser: keep, drop or correct pairs by single keys.

srem review audits/mine
srem review audits/mine --image-root /new/place
srem review audits/mine --host 0.0.0.0 --port 9000

The page is served on this machine alone and needs no connection to the web. Every decision is stored immediately in
DIR/decisions.sqlite. `srem export DIR` honours decisions, and the same `srem audit` command, run again, learns from
them. With --host other machines can open the page, and only with the token in the printed address.
"""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "review an audit in the browser"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of a finished audit")
    parser.add_argument("--image-root", type=Path, metavar="DIR", help="where the images are now, if they were moved")
    parser.add_argument("--pairs", type=Path, metavar="PATH", help="where the pairs are now, if they were moved")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to serve on; browsers on other machines need a token"
    )
    parser.add_argument("--port", type=int, help="0 for any free one (default: the first free one from 8765 on)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(args: argparse.Namespace) -> None:
    from sremkit.extras import require

    for package in ("fastapi", "uvicorn"):
        require(package, extra="review", purpose="serve pages to a browser")
    from sremkit.review.app import review_app
    from sremkit.review.images import AuditImages
    from sremkit.review.reviewed_audit import ReviewedAudit
    from sremkit.web.security import is_loopback, new_token
    from sremkit.web.server import open_socket, serve

    audit = ReviewedAudit(args.folder)
    images = AuditImages(audit.folder, audit.table.facts["source"], path=args.pairs, image_root=args.image_root)
    bound = open_socket(args.host, args.port)
    token = None if is_loopback(args.host) else new_token()
    print(f"{args.folder}: {len(audit):,} pairs, {audit.is_mismatch.sum():,} flagged, {len(audit.by_row()):,} decided")
    if images.note:
        print(images.note)
    app = review_app(audit, images, token=token)
    serve(app, bound, host=args.host, token=token, name="review", open_browser=not args.no_browser)
