"""Make and inspect noise index files, in both published formats.

srem noise make --images 29000 --rate 0.4 -o f30k_0.4.npy
srem noise inspect f30k_0.4.npy
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from sremkit.errors import UserError

if TYPE_CHECKING:
    from sremkit.data.noise import NoiseSummary

HELP = "make and inspect noise index files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    make = actions.add_parser(
        "make",
        help="shuffle a share of the pairs and write the index file",
        description="Shuffle a share of the pairs, seeded, and write the index file that says so.",
        formatter_class=parser.formatter_class,
    )
    source = make.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="pairs to make the noise for, in any known format")
    source.add_argument("--images", type=int, help="or just the number of images")
    make.add_argument("--captions-per-image", type=int, default=5, help="with --images")
    make.add_argument("--split", default="train", help="with --data")
    make.add_argument("--rate", type=float, default=0.4, help="share of pairs to shuffle, from 0 to 1")
    make.add_argument(
        "--protocol",
        choices=("caption", "image"),
        default="caption",
        help="shuffle captions one by one (NCR, BiCro, MSCN) or all captions of an image together (DECL, RCL)",
    )
    make.add_argument("--seed", type=int, default=0, help="the same seed gives the same file")
    make.add_argument("-o", "--out", type=Path, required=True, help="the .npy file to write")
    make.set_defaults(act=_make)

    inspect = actions.add_parser(
        "inspect",
        help="say what an index file does",
        description="Say what an index file does: protocol, realised rate, images hit, hash.",
        formatter_class=parser.formatter_class,
    )
    inspect.add_argument("files", type=Path, nargs="+", metavar="FILE", help=".npy files in either format")
    inspect.add_argument(
        "--captions-per-image", type=int, help="needed only where the file alone does not tell it"
    )
    inspect.set_defaults(act=_inspect)


def run(args: argparse.Namespace) -> None:
    args.act(args)


def _make(args: argparse.Namespace) -> None:
    import numpy as np

    from sremkit.data import make_noise, read_pairs, save_noise
    from sremkit.data.noise import inspect_noise

    if args.seed < 0:
        raise UserError(f"--seed must be 0 or more, got {args.seed}")
    if args.out.exists():
        raise UserError(f"{args.out} exists already; name another file or remove it first")
    if args.data is not None:
        image_of_text = read_pairs(args.data, split=args.split).image_of_text
    else:
        _check_counts(args)
        image_of_text = np.repeat(np.arange(args.images), args.captions_per_image)
    noise = make_noise(image_of_text, rate=args.rate, protocol=args.protocol, seed=args.seed)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    save_noise(noise, args.out)
    _describe(args.out, inspect_noise(args.out, image_of_text=image_of_text))


def _check_counts(args: argparse.Namespace) -> None:
    if args.images < 1:
        raise UserError(f"--images is the number of images, 1 or more; got {args.images}")
    if args.captions_per_image < 1:
        raise UserError(f"--captions-per-image must be 1 or more, got {args.captions_per_image}")


def _inspect(args: argparse.Namespace) -> None:
    from sremkit.data.noise import inspect_noise

    for file in args.files:
        _describe(file, inspect_noise(file, captions_per_image=args.captions_per_image))


def _describe(file: Path, summary: NoiseSummary) -> None:
    images = summary.num_images
    lines = {
        "protocol": f"per {summary.protocol}",
        "file format": f"one number per {summary.format}",
        "realised rate": f"{summary.rate:.5f}",
        "images moved": f"{summary.images_moved:,} of {images:,}",
        "all captions wrong": f"{summary.images_all_wrong:,} images ({100 * summary.share_all_wrong:.2f} %)",
        "no caption wrong": f"{summary.images_none_wrong:,} images ({100 * summary.share_none_wrong:.2f} %)",
        "hash of the file": summary.file_hash,
    }
    if summary.num_captions is not None:
        lines["captions moved"] = f"{summary.captions_moved:,} of {summary.num_captions:,}"
        lines["hash of the pairing"] = str(summary.hash)
    print(file)
    for label, value in lines.items():
        print(f"  {label:<20} {value}")
