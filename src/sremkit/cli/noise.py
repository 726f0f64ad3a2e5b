"""Make and inspect noise index files, in both published formats.

srem noise make --images 29000 --rate 0.4 -o f30k_0.4.npy
srem noise inspect f30k_0.4.npy
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from sremkit.cli import numbers
from sremkit.config.recipes import NoiseProtocol
from sremkit.errors import UserError

if TYPE_CHECKING:
    from sremkit.data.noise import NoiseSummary

HELP = "make and inspect noise index files"
MAX_CAPTIONS = 100_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    make = actions.add_parser(
        "make",
        help="shuffle a fraction of the pairs and write the index file",
        description="Shuffle a fraction of the pairs, seeded, and write the index file.\n\n"
        "srem noise make --images 29000 --rate 0.4 -o f30k_0.4.npy\n"
        "srem noise make --data pairs.csv --rate 0.2 --protocol image -o mine_0.2.npy\n"
        "srem noise make --data pairs.csv --rate 0.05 --protocol one-word -o mine_captions.txt",
    )
    source = make.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="pairs to make noise for, in any known format")
    source.add_argument("--images", type=numbers.count, help="number of images, instead of --data")
    make.add_argument("--captions-per-image", type=numbers.count, default=5, help="with --images")
    make.add_argument("--split", default="train", help="with --data")
    make.add_argument("--rate", type=float, default=0.4, help="fraction of the pairs to shuffle, from 0 to 1")
    make.add_argument(
        "--protocol",
        choices=get_args(NoiseProtocol),
        default="caption",
        help="shuffle captions one by one (NCR, BiCro, MSCN) or all captions of an image together (DECL, RCL); take "
        "captions of images that are held out (absent), of a similar image (near), with a content word in common "
        "(shared-word); or exchange one word (one-word)",
    )
    make.add_argument("--seed", type=numbers.large_seed, default=0, help="the same seed gives the same file")
    make.add_argument(
        "-o", "--out", type=Path, required=True, help="the .npy file to write; for one-word a .txt file of captions"
    )
    make.set_defaults(act=_make)

    inspect = actions.add_parser(
        "inspect",
        help="describe index files",
        description="Describe index files: protocol, realised rate, affected images, hash.\n\n"
        "srem noise inspect f30k_0.4.npy",
    )
    inspect.add_argument("files", type=Path, nargs="+", metavar="FILE", help=".npy files in either format")
    inspect.add_argument(
        "--captions-per-image", type=numbers.count, help="needed only if the file does not determine it"
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
    texts, vectors = None, None
    if args.data is not None:
        pairs = read_pairs(args.data, split=args.split)
        image_of_text, texts = pairs.image_of_text, pairs.texts
        if args.protocol == "near" and pairs.text_features is not None:
            vectors = pairs.text_features.rows(np.arange(len(pairs))).values
    else:
        if args.images < 1:
            raise UserError(f"--images is the number of images, 1 or more; got {args.images}")
        if args.captions_per_image < 1:
            raise UserError(f"--captions-per-image must be 1 or more, got {args.captions_per_image}")
        if args.images * args.captions_per_image > MAX_CAPTIONS:
            raise UserError(
                f"--images times --captions-per-image must be at most {MAX_CAPTIONS:,}, "
                f"got {args.images * args.captions_per_image:,}"
            )
        image_of_text = np.repeat(np.arange(args.images), args.captions_per_image)
    noise = make_noise(image_of_text, args.rate, args.protocol, args.seed, texts=texts, vectors=vectors)
    if (noise.texts is None) == (args.out.suffix == ".txt"):
        kind = ".npy file" if noise.texts is None else "text file, .txt, with one caption a line"
        raise UserError(f"the noise protocol '{args.protocol}' is written as a {kind}; got {args.out}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    if noise.texts is not None:
        lines = (" ".join(text.split()) for text in noise.texts)
        args.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{args.out}\n  realised rate        {noise.rate:.5f}\n  hash                 {noise.hash}")
        return
    save_noise(noise, args.out)
    summary = inspect_noise(
        args.out, image_of_text=image_of_text, format="image" if args.protocol == "image" else "caption"
    )
    _describe(args.out, summary)


def _inspect(args: argparse.Namespace) -> None:
    from sremkit.data.noise import inspect_noise

    for file in args.files:
        _describe(file, inspect_noise(file, captions_per_image=args.captions_per_image))


def _describe(file: Path, summary: NoiseSummary) -> None:
    from sremkit.data.noise import protocol_label

    images, all_wrong, none_wrong = summary.num_images, summary.images_all_wrong, summary.images_none_wrong
    lines = {
        "protocol": protocol_label(summary.protocol),
        "file format": f"one number per {summary.format}",
        "realised rate": f"{summary.rate:.5f}",
        "images moved": f"{summary.images_moved:,} of {images:,}",
        "all captions wrong": f"{all_wrong:,} images ({100 * (all_wrong / images):.2f} %)",
        "no caption wrong": f"{none_wrong:,} images ({100 * (none_wrong / images):.2f} %)",
        "hash of the file": summary.file_hash,
    }
    if summary.num_captions is not None:
        lines["captions moved"] = f"{summary.captions_moved:,} of {summary.num_captions:,}"
        lines["hash of the pairing"] = str(summary.hash)
    print(file)
    for label, value in lines.items():
        print(f"  {label:<20} {value}")
