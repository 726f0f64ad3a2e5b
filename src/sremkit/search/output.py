"""Results of a search as a table for the terminal, as JSON, or as one offline HTML page of images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sremkit.data.pairs import ImageSource
from sremkit.errors import DataError
from sremkit.reports.page import image_uri, render
from sremkit.search.searcher import Hit

if TYPE_CHECKING:
    from PIL.Image import Image

WIDTH = 60  # characters of a caption or id in the table


def as_table(hits: Sequence[Hit]) -> str:
    """One line for each hit: rank, score, image id, caption."""
    rows = [("rank", "score", "image", "caption")]
    for hit in hits:
        caption = hit.texts[0] if hit.texts else ""
        rows.append((str(hit.rank), f"{hit.score:.2f}", _cut(hit.image_id), _cut(caption)))
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines = [
        f"{rank:>{widths[0]}}  {score:>{widths[1]}}  {image:<{widths[2]}}  {caption}".rstrip()
        for rank, score, image, caption in rows
    ]
    return "\n".join(lines) + "\n"


def as_json(query: dict[str, Any], hits: Sequence[Hit]) -> str:
    return json.dumps({"query": query, "results": [hit.as_dict() for hit in hits]}, indent=2, ensure_ascii=False) + "\n"


def as_html(
    query: str, hits: Sequence[Hit], images: ImageSource | None, *, query_image: Image | None = None, lead: str = ""
) -> str:
    """A page that loads nothing: its images are inside."""
    cards = [{"hit": hit, "uri": _uri(images, hit.image)} for hit in hits]
    shown = None if query_image is None else image_uri(query_image, side=240)
    return render("search.html", title=f"Search: {query}", query=query, query_image=shown, lead=lead, cards=cards)


def _uri(images: ImageSource | None, number: int) -> str | None:
    if images is None:
        return None
    try:
        return image_uri(images.open(number), side=240)
    except DataError:
        return None


def _cut(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
