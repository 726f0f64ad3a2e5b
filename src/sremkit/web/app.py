"""The FastAPI app of a browser application, with the security checks and its static files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sremkit.errors import UserError
from sremkit.extras import require
from sremkit.version import __version__
from sremkit.web.security import MAX_BODY_BYTES, SecurityMiddleware

if TYPE_CHECKING:
    from fastapi import FastAPI

COMMON = Path(__file__).parent / "static"


def create_app(
    title: str,
    *,
    static: Path | None = None,
    token: str | None = None,
    openapi: bool = False,
    max_body_bytes: int = MAX_BODY_BYTES,
    extra: str = "review",
) -> FastAPI:
    """Create an app without routes.

    `UserError` is answered with 400 and its sentence, a value out of range with 422, every other exception with 500 and
    none of its details.

    Args:
        static: folder that is served below `/static`; what the applications share is below `/common`.
        token: required of every request; None on the loopback interface.
        openapi: serve `/openapi.json`. FastAPI's own documentation page loads scripts from the web and is left out.
        max_body_bytes: larger requests get 413.
        extra: of sremkit, named if FastAPI is not installed.
    """
    fastapi = require("fastapi", extra=extra, purpose="serve pages to a browser")
    exceptions, responses, staticfiles = (
        require(f"fastapi.{n}", extra=extra, purpose="serve") for n in ("exceptions", "responses", "staticfiles")
    )
    app = fastapi.FastAPI(
        title=title,
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json" if openapi else None,
    )

    @app.exception_handler(UserError)
    def refuse(request: Any, problem: UserError) -> Any:
        return responses.JSONResponse({"detail": str(problem)}, status_code=400)

    @app.exception_handler(exceptions.RequestValidationError)
    def refuse_values(request: Any, problem: Any) -> Any:
        # FastAPI's own answer repeats the input, which may be megabytes, and fails on NaN and lone surrogates.
        detail = [{name: error[name] for name in ("type", "loc", "msg")} for error in problem.errors()]
        content = json.dumps({"detail": detail})  # in ASCII
        return responses.Response(content, status_code=422, media_type="application/json")

    app.mount("/common", staticfiles.StaticFiles(directory=COMMON))
    if static is not None:
        app.mount("/static", staticfiles.StaticFiles(directory=static))
    app.add_middleware(SecurityMiddleware, token=token, max_body_bytes=max_body_bytes)
    return app
