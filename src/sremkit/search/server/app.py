"""The HTTP API over a searcher: /search, /score, /health, /metrics, images by number, and the search page."""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sremkit.data.images import decode_image
from sremkit.errors import DataError, UserError
from sremkit.extras import require
from sremkit.models.matcher import Encoded
from sremkit.search.searcher import Hit, Searcher
from sremkit.search.server.batcher import MicroBatcher, QueueFullError
from sremkit.search.server.monitoring import Metrics, MonitoringMiddleware, log_event
from sremkit.search.server.schemas import MAX_BASE64, MAX_CHARACTERS, MAX_RESULTS, make_schemas
from sremkit.search.vector_index import faiss_module
from sremkit.web.app import create_app
from sremkit.worker_processes import usable_cores

if TYPE_CHECKING:
    from fastapi import FastAPI
    from PIL.Image import Image

STATIC = Path(__file__).parent / "static"
THUMBNAIL_SIDE = 320
CACHED_THUMBNAILS = 2_000
TIMEOUT = 10.0  # seconds until a request is given up
MAX_BATCH = 32
MAX_WAITING = 256
EXTRA = "serve"


class Query(NamedTuple):
    """A text or an image to search with."""

    text: str | None
    image: Image | None
    k: int


class EncodedQuery(NamedTuple):
    """A query after encoding: one item."""

    encoded: Encoded
    is_text: bool
    k: int


class Scored(NamedTuple):
    """Pairs to score; an image by itself or by its number in the collection."""

    texts: tuple[str, ...]
    images: tuple[Image | int, ...]


class SearchService:
    """Computes the queries of concurrent requests in micro-batches.

    One thread encodes and scores, another searches in the index, so that two batches are under way.

    Args:
        threads: CPU threads of each of the two; by default half of the cores.
    """

    def __init__(
        self, searcher: Searcher, metrics: Metrics, *, timeout: float = TIMEOUT, threads: int | None = None
    ) -> None:
        self.searcher = searcher
        self.timeout = timeout
        threads = threads or max(1, usable_cores() // 2)
        torch.set_num_threads(threads)
        searcher.prepare_for_many_queries()
        limits: dict[str, Any] = {
            "max_batch": MAX_BATCH,
            "max_waiting": MAX_WAITING,
            # The number of OpenMP threads belongs to the thread that sets it; torch has a global one.
            "on_start": lambda: faiss_module().omp_set_num_threads(threads),
        }
        self.encoding: MicroBatcher[Query | Scored, Any] = MicroBatcher(
            self._encode, on_batch=metrics.batch_size.observe, **limits
        )
        self.finding: MicroBatcher[EncodedQuery, list[Hit]] = MicroBatcher(self._find, **limits)
        metrics.images.set(searcher.pairs.num_images)
        metrics.waiting.set_function(lambda: self.encoding.num_waiting + self.finding.num_waiting)

    async def search(self, query: Query) -> list[Hit]:
        """The hits of a query. Raises `QueueFullError` or `TimeoutError`."""
        async with asyncio.timeout(self.timeout):
            encoded = await asyncio.wrap_future(self.encoding.submit(query))
            return await asyncio.wrap_future(self.finding.submit(encoded))

    async def score(self, pairs: Scored) -> list[float]:
        """The scores of pairs; raises as `search`."""
        async with asyncio.timeout(self.timeout):
            return await asyncio.wrap_future(self.encoding.submit(pairs))

    def close(self) -> None:
        """Finish what waits, and stop."""
        self.encoding.close()
        self.finding.close()

    def _encode(self, items: Sequence[Query | Scored]) -> list[EncodedQuery | list[float]]:
        """All texts in one call of the model, and all images."""
        results: dict[int, EncodedQuery | list[float]] = {}
        texts = [(k, item) for k, item in enumerate(items) if isinstance(item, Query) and item.text is not None]
        images = [(k, item) for k, item in enumerate(items) if isinstance(item, Query) and item.image is not None]
        if texts:
            encoded = self.searcher.model.encode_texts([query.text or "" for _, query in texts])
            results |= {k: EncodedQuery(encoded[q : q + 1], True, query.k) for q, (k, query) in enumerate(texts)}
        if images:
            encoded = self.searcher.model.encode_images([query.image for _, query in images if query.image is not None])
            results |= {k: EncodedQuery(encoded[q : q + 1], False, query.k) for q, (k, query) in enumerate(images)}
        for k, item in enumerate(items):
            if isinstance(item, Scored):
                results[k] = self.searcher.score(item.texts, item.images)
        return [results[k] for k in range(len(items))]

    def _find(self, queries: Sequence[EncodedQuery]) -> list[list[Hit]]:
        results: dict[int, list[Hit]] = {}
        for is_text, find in ((True, self.searcher.find_images), (False, self.searcher.find_texts)):
            here = [k for k, query in enumerate(queries) if query.is_text == is_text]
            if here:
                encoded = Encoded.concatenate([queries[k].encoded for k in here])
                results |= dict(zip(here, find(encoded, [queries[k].k for k in here]), strict=True))
        return [results[k] for k in range(len(queries))]


def build_app(
    searcher: Searcher, *, token: str | None = None, timeout: float = TIMEOUT, threads: int | None = None
) -> FastAPI:
    """The app of `srem serve`.

    Args:
        token: required of every request; None on the loopback interface.
        timeout: seconds until a request is given up with 504.
        threads: see `SearchService`.
    """
    fastapi = require("fastapi", extra=EXTRA, purpose="serve search over HTTP")
    responses = require("fastapi.responses", extra=EXTRA, purpose="serve search over HTTP")
    schemas, metrics = make_schemas(), Metrics()
    app = create_app(
        "sremkit search", static=STATIC, token=token, openapi=True, max_body_bytes=MAX_BASE64 + 100_000, extra=EXTRA
    )
    service = SearchService(searcher, metrics, timeout=timeout, threads=threads)
    app.state.service = service
    app.add_middleware(MonitoringMiddleware, metrics=metrics, log=log_event)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.close)
        log_event("stopped")

    app.router.lifespan_context = lifespan

    refusals = {
        400: "the request cannot be answered as it is", 413: "the request is too large", 422: "a value is out of range",
        503: "too many requests wait", 504: "the request took too long",
    }  # fmt: skip
    problems: dict[int | str, dict[str, Any]] = {
        status: {"description": text, "model": schemas.problem} for status, text in refusals.items()
    }

    async def answer(result: Awaitable[Any]) -> Any:
        try:
            return await result
        except QueueFullError:
            detail = "too many requests wait; try again in a second"
            raise fastapi.HTTPException(503, detail, headers={"Retry-After": "1"}) from None
        except TimeoutError:
            raise fastapi.HTTPException(504, f"not answered within {timeout:g} s; try again later") from None

    async def search(text: str | None, image: str | None, k: int) -> Any:
        if (text is None) == (image is None):
            raise UserError("give either text or image")
        if text is not None:
            check_text(text)
        decoded = None if image is None else await asyncio.to_thread(decode_base64, image)
        hits = await answer(service.search(Query(text, decoded, k)))
        return responses.JSONResponse({"results": [hit.as_dict() for hit in hits]})

    @app.get("/search", response_model=schemas.results, responses=problems, summary="Find images for a text")
    async def get_search(
        text: str = fastapi.Query(min_length=1, max_length=MAX_CHARACTERS),
        k: int = fastapi.Query(10, ge=1, le=MAX_RESULTS),
    ) -> Any:
        return await search(text, None, k)

    async def post_search(request: Any) -> Any:
        return await search(request.text, request.image, request.k)

    async def post_score(request: Any) -> Any:
        for pair in request.pairs:
            check_text(pair.text)
            if (pair.image is None) == (pair.image_id is None):
                raise UserError("give each pair either image or image_id")
        images = await asyncio.to_thread(lambda: tuple(open_image(pair) for pair in request.pairs))
        scores = await answer(service.score(Scored(tuple(pair.text for pair in request.pairs), images)))
        return responses.JSONResponse({"scores": scores})

    def open_image(pair: Any) -> Image | int:
        return searcher.image_number(pair.image_id) if pair.image is None else decode_base64(pair.image)

    post_search.__annotations__["request"] = schemas.search
    post_score.__annotations__["request"] = schemas.score
    app.post(
        "/search",
        response_model=schemas.results,
        responses=problems,
        summary="Find images for a text, or captions for an image",
    )(post_search)
    app.post("/score", response_model=schemas.scores, responses=problems, summary="Score texts with images")(post_score)

    @app.get("/health", response_model=schemas.health, summary="Whether the server answers, and what it searches")
    async def health() -> Any:
        pairs = searcher.pairs
        return {
            "status": "ok",
            "model": searcher.model.name,
            "collection": pairs.name,
            "images": pairs.num_images,
            "texts": len(pairs),
        }

    @app.get("/metrics", response_class=responses.PlainTextResponse, summary="Metrics in Prometheus' format")
    async def show_metrics() -> Any:
        content, media_type = metrics.render()
        return responses.Response(content, media_type=media_type)

    @lru_cache(maxsize=CACHED_THUMBNAILS)
    def thumbnail(number: int) -> bytes:
        assert searcher.pairs.images is not None
        image = searcher.pairs.images.open(number).convert("RGB")
        image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        data = io.BytesIO()
        image.save(data, format="WEBP", quality=80)
        return data.getvalue()

    missing: dict[int | str, dict[str, Any]] = {
        404: {"description": "there is no such image", "model": schemas.problem},
        422: problems[422],
    }
    shown: dict[int | str, dict[str, Any]] = {200: {"description": "a WebP thumbnail", "content": {"image/webp": {}}}}

    @app.get("/images/{number}", response_class=responses.Response, responses={**missing, **shown}, summary="An image")
    def show_image(number: int = fastapi.Path(ge=0, le=2**31)) -> Any:
        if searcher.pairs.images is None or number >= searcher.pairs.num_images:
            raise fastapi.HTTPException(404, "there is no such image")
        try:
            data = thumbnail(number)
        except DataError as problem:
            raise fastapi.HTTPException(404, "the image file cannot be read") from problem
        return responses.Response(data, media_type="image/webp")

    @app.get("/", include_in_schema=False)
    async def page() -> Any:
        return responses.FileResponse(STATIC / "search.html")

    return app


def check_text(text: str) -> None:
    if not text.strip():
        raise UserError("the text is empty; say what to find images of")


def decode_base64(content: str) -> Image:
    """Decode an image file in base64, with or without the prefix of a data address."""
    data = content.partition(",")[2] if content.startswith("data:") else content
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("the image is not valid base64; encode the bytes of an image file") from None
    return decode_image(io.BytesIO(raw), name="the image")
