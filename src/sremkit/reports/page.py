"""Pages from templates, with everything they show inside one file."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sremkit.extras import require
from sremkit.version import __version__

if TYPE_CHECKING:
    from PIL.Image import Image

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **context: Any) -> str:
    """Fill a template; every text is escaped unless the template says it is markup."""
    jinja2 = require("jinja2", extra="report", purpose="write HTML reports")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(version=__version__, **context)


def image_uri(image: Image, *, side: int = 160) -> str:
    """An image as data, shrunk to at most `side` pixels, small enough to stand in a page by the dozen."""
    small = image.convert("RGB")
    small.thumbnail((side, side))
    data = io.BytesIO()
    small.save(data, format="WEBP", quality=80)
    return "data:image/webp;base64," + base64.b64encode(data.getvalue()).decode("ascii")
