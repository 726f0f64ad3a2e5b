"""Search with a trained model: a text finds images, an image finds captions.

srem search runs/mine "a dog on a beach"
srem search runs/mine --image photo.jpg -k 5
srem search audits/mine "a dog on a beach" --format html -o dogs.html
srem search runs/mine "a dog on a beach" --format json

The score is the model's logit: higher fits better. The first search builds the index; `srem index` builds it again or
with other options.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sremkit.errors import UserError

HELP = "find images for a text, or captions for an image"
MAX_RESULTS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN_OR_AUDIT", help="folder of a trained run or a finished audit")
    parser.add_argument("text", nargs="?", help="what to find images of")
    parser.add_argument("--image", type=Path, metavar="FILE", help="or an image, to find captions for")
    parser.add_argument("-k", type=int, default=10, help="number of results")
    parser.add_argument("--format", choices=("table", "json", "html"), default="table", help="of the output")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write to a file (default: the terminal; "
                        "search.html for html)")  # fmt: skip


def run(args: argparse.Namespace) -> None:
    from sremkit.cli.index import open_or_build
    from sremkit.data.images import decode_image
    from sremkit.io import atomic_write
    from sremkit.search.output import as_html, as_json, as_table

    if (args.text is None) == (args.image is None):
        raise UserError('give either a text, such as "a dog on a beach", or --image FILE')
    if args.text is not None and not args.text.strip():
        raise UserError("the text is empty; say what to find images of")
    if not 1 <= args.k <= MAX_RESULTS:
        raise UserError(f"-k must be from 1 to {MAX_RESULTS}, got {args.k}")
    query_image = None if args.image is None else decode_image(str(args.image), name=str(args.image))
    searcher = open_or_build(args.folder)
    if query_image is None:
        (hits,) = searcher.search_texts([args.text], args.k)
        query, shown = {"text": args.text}, args.text
    else:
        (hits,) = searcher.search_images([query_image], args.k)
        query, shown = {"image": str(args.image)}, args.image.name
    if args.format == "json":
        content = as_json(query, hits)
    elif args.format == "table":
        content = as_table(hits)
    else:
        count, noun = (len(searcher.images), "images") if query_image is None else (len(searcher.texts), "captions")
        lead = f"{len(hits)} of {count:,} {noun} of {searcher.pairs.name}, scored by {searcher.model.name}"
        content = as_html(shown, hits, searcher.pairs.images, query_image=query_image, lead=lead)
    out = args.out or (Path("search.html") if args.format == "html" else None)
    if out is None:
        print(content, end="")
    else:
        atomic_write(out, content)
        print(f"written to {out}")
