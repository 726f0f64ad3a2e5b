"""Pages and API of the review.

GET  /                 the page            GET  /api/audit     what is reviewed
GET  /api/rows         rows of a filter    GET  /api/pairs     details of some rows
GET  /api/changes      decisions since     GET  /image/...     an image of a row
POST /api/decide       store a decision    POST /api/undo      take back the last one of a browser tab
"""

# Without `from __future__ import annotations`: FastAPI reads the types of the functions below, which are local.

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sremkit.audit.decisions import Change
from sremkit.errors import UserError
from sremkit.review.images import AuditImages, Thumbnails
from sremkit.review.reviewed_audit import MAX_ROWS, Filter, ReviewedAudit
from sremkit.web.app import create_app

if TYPE_CHECKING:
    from fastapi import FastAPI

STATIC = Path(__file__).parent / "static"
MAX_DETAILS = 200  # rows of one request
MAX_TEXT = 5000  # characters of a new caption
DAY = 86_400  # seconds


def review_app(audit: ReviewedAudit, images: AuditImages, *, token: str | None = None) -> "FastAPI":
    """The app that reviews an audit."""
    from fastapi import Depends, Query
    from fastapi.responses import FileResponse, JSONResponse, Response
    from pydantic import BaseModel, Field

    app = create_app("sremkit review", static=STATIC, token=token)
    thumbnails = Thumbnails(images)
    unchanged = [Depends(audit.check_unchanged)]

    class Decide(BaseModel):
        row: int
        action: Literal["keep", "drop", "edit", "accept"] | None
        text: str | None = Field(None, max_length=MAX_TEXT)
        client: str = Field(min_length=1, max_length=64)

    class Undo(BaseModel):
        client: str = Field(min_length=1, max_length=64)

    @app.get("/")
    def page() -> Any:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    @app.get("/favicon.ico")
    def icon() -> Any:
        return Response(status_code=204)

    @app.get("/api/audit", dependencies=unchanged)
    def describe() -> Any:
        summary = audit.summary
        return {
            "name": audit.folder.resolve().name,
            "key": audit.key,
            "pairs": len(audit),
            "flagged": int(audit.is_mismatch.sum()),
            "borderline": int(audit.is_borderline.sum()),
            "expected_precision": summary.get("expected_precision"),
            "noise_rate": summary.get("noise_rate"),
            "rank_only": audit.rank_only,
            "note": images.note,
            "progress": audit.progress(),
            "version": audit.version,
        }

    @app.get("/api/rows", dependencies=unchanged)
    def rows(
        show: str = "all",
        issue: str = "any",
        decided: str = "any",
        low: float = 0.0,
        high: float = 1.0,
        query: str = Query("", max_length=500),
        order: str = "lowest",
    ) -> Any:
        found = audit.rows(Filter(show, issue, decided, low, high, query, order))  # type: ignore[arg-type]
        return JSONResponse({"total": len(found), "rows": found[:MAX_ROWS].tolist()})

    @app.get("/api/pairs", dependencies=unchanged)
    def pairs(rows: str = Query(max_length=20 * MAX_DETAILS)) -> Any:
        try:
            numbers = [int(row) for row in rows.split(",")]
        except ValueError:
            raise UserError("rows are numbers, separated by commas") from None
        if len(numbers) > MAX_DETAILS:
            raise UserError(f"at most {MAX_DETAILS} rows can be read in one request")
        return JSONResponse(audit.details(numbers))

    @app.get("/api/changes", dependencies=unchanged)
    def changes(since: int = Query(0, ge=0, le=2**62)) -> Any:
        changed = [described(change) for change in audit.changes(since)]
        return JSONResponse({"changes": changed, "progress": audit.progress()})

    @app.get("/image/{key}/{row}/{size}", dependencies=unchanged)
    def image(key: str, row: int, size: Literal["small", "large"], better: bool = False) -> Any:
        place, name = audit.image_name(row, better=better)
        data = thumbnails.get(place, name, size)
        if data is None:
            return JSONResponse({"detail": "this image cannot be shown"}, status_code=404)
        # The address contains the key of the audit, so the image behind it never changes.
        return Response(data, media_type="image/webp", headers={"cache-control": f"private, max-age={DAY}"})

    @app.post("/api/decide", dependencies=unchanged)
    def decide(body: Decide) -> Any:
        change = audit.decide(body.row, body.action, body.text, client=body.client)
        return {"change": described(change), "progress": audit.progress()}

    @app.post("/api/undo", dependencies=unchanged)
    def undo(body: Undo) -> Any:
        change = audit.undo(body.client)
        return {"change": None if change is None else described(change), "progress": audit.progress()}

    return app


def described(change: Change) -> dict[str, Any]:
    """A change for the browser, which shows the latest one of each row."""
    decision = None if change.decision is None else change.decision._asdict()
    return {"number": change.number, "row": change.row, "decision": decision}
