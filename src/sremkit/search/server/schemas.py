"""Requests and responses of the HTTP API, as FastAPI validates and documents them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sremkit.extras import require

if TYPE_CHECKING:
    from pydantic import BaseModel

MAX_RESULTS = 100
MAX_CHARACTERS = 2_000  # of a text
MAX_PAIRS = 64  # of a request to /score
MAX_IMAGE_BYTES = 10_000_000  # of an image file
MAX_BASE64 = 4 * MAX_IMAGE_BYTES // 3 + 4


class Schemas(NamedTuple):
    """The models; made by a function, because pydantic is an optional package."""

    search: type[BaseModel]
    results: type[BaseModel]
    score: type[BaseModel]
    scores: type[BaseModel]
    health: type[BaseModel]
    problem: type[BaseModel]


def make_schemas() -> Schemas:
    pydantic = require("pydantic", extra="serve", purpose="check requests")
    create, field = pydantic.create_model, pydantic.Field
    strict = pydantic.ConfigDict(extra="forbid")
    text = field(None, min_length=1, max_length=MAX_CHARACTERS, description="what to find images of")
    image = field(
        None, min_length=1, max_length=MAX_BASE64, description="an image file in base64, to find captions for"
    )
    image_id = field(None, min_length=1, max_length=MAX_CHARACTERS, description="or an image of the collection")
    hit: Any = create(
        "Hit",
        rank=(int, field(description="from 1")),
        score=(float, field(description="the model's logit; higher fits better")),
        image=(int, field(description="number of the image; /images/NUMBER shows it")),
        image_id=(str, ...),
        texts=(list[str], field(description="the caption found, or captions of the image found")),
        pair_id=(str | None, None),
    )
    pair: Any = create(
        "Pair",
        __config__=strict,
        text=(str, field(min_length=1, max_length=MAX_CHARACTERS)),
        image=(str | None, image),
        image_id=(str | None, image_id),
    )
    counts: dict[str, Any] = {"images": (int, ...), "texts": (int, ...)}
    return Schemas(
        search=create(
            "SearchRequest",
            __config__=strict,
            text=(str | None, text),
            image=(str | None, image),
            k=(int, field(10, ge=1, le=MAX_RESULTS, description="number of results")),
        ),
        results=create("SearchResults", results=(list[hit], ...)),
        score=create("ScoreRequest", __config__=strict, pairs=(list[pair], field(min_length=1, max_length=MAX_PAIRS))),
        scores=create("Scores", scores=(list[float], field(description="a logit for each pair, in order"))),
        health=create("Health", status=(str, ...), model=(str, ...), collection=(str, ...), **counts),
        problem=create("Problem", detail=(str | list[Any], field(description="what is wrong and what to do"))),
    )
