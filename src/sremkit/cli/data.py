"""Make generated collections of the sizes of Flickr30K, MS-COCO and CC152K.

srem data make --like f30k -o data/f30k_precomp
srem data make --like coco --dtype float16 -o data/coco_precomp

They are not real data: they show that a recipe trains, and how fast, at full size.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sremkit.cli import numbers
from sremkit.errors import UserError

HELP = "make generated collections of the paper's sizes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    make = actions.add_parser(
        "make",
        help="write a generated collection in the field's precomputed layout",
        description="Write a generated collection in the layout {split}_ims.npy, {split}_caps.txt.\n\n"
        "srem data make --like f30k --images 1000 -o data/f30k_precomp",
    )
    make.add_argument(
        "--like",
        choices=("f30k", "coco", "cc152k"),
        default="f30k",
        help="whose sizes: 29,000, 113,287 or 150,000 training images",
    )
    make.add_argument("--images", type=numbers.count, help="number of training images, if other than that collection's")
    make.add_argument("--regions", type=numbers.count, default=36, help="regions of an image")
    make.add_argument("--dim", type=numbers.count, default=2048, help="width of a region's features")
    make.add_argument("--concepts", type=numbers.count, help="number of concepts that images show and captions name")
    make.add_argument(
        "--zipf", type=float, default=1.0, help="exponent of the concept frequencies; 0 makes them uniform"
    )
    make.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="type of the features on disk")
    make.add_argument("--seed", type=numbers.large_seed, default=0, help="the same seed gives the same bytes")
    make.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="the folder to write")
    make.set_defaults(act=_make)


def run(args: argparse.Namespace) -> None:
    args.act(args)


def _make(args: argparse.Namespace) -> None:
    from rich.console import Console

    from sremkit.cli.progress import StageProgress
    from sremkit.data.generated.concepts import collection_like, write_collection

    for option in ("images", "regions", "dim", "concepts"):
        value = getattr(args, option)
        if value is not None and not 1 <= value <= 10_000_000:
            raise UserError(f"--{option} must lie between 1 and 10,000,000, got {value}")
    if not 0 <= args.seed < 2**63:
        raise UserError(f"--seed must lie between 0 and 2^63 - 1, got {args.seed}")
    if not 0 <= args.zipf <= 10:
        raise UserError(f"--zipf must lie between 0 and 10, got {args.zipf}")
    collection = collection_like(
        args.like,
        images=args.images,
        num_regions=args.regions,
        dim=args.dim,
        num_concepts=args.concepts,
        zipf=args.zipf,
        dtype=args.dtype,
        seed=args.seed,
    )
    console = Console(soft_wrap=True)
    with StageProgress(console) as progress:
        write_collection(collection, args.out, progress.stage)
    images = sum(collection.splits.values())
    console.print(
        f"{args.out}: {images:,} generated images with {images * collection.captions_per_image:,} captions; "
        "not real data, so keep results on it apart"
    )
