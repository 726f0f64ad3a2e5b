"""The benches of `srem bench` that measure a step: speed, growth, loader, tiles."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from sremkit.errors import UserError


def add_speed(parser: argparse.ArgumentParser) -> None:
    ways = ("loop", "recorded", "fused", "plain", "compiled")
    _add_steps(parser, backbones=["saf", "sgr", "scan-t2i"], ways=ways)
    _add_patience(parser)
    parser.add_argument("--eval-images", type=int, default=1000)
    parser.add_argument("--eval-texts", type=int, default=5000, help="0 leaves scoring out")
    parser.add_argument("--check", action="store_true", help="first compare the kernels with plain PyTorch")
    parser.add_argument("--profile", action="store_true", help="print where each training step's time goes")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the rows there as CSV, after each one")
    parser.set_defaults(act=_speed)


def add_growth(parser: argparse.ArgumentParser) -> None:
    _add_steps(parser, backbones=["saf", "sgr", "scan-t2i"], ways=("replayed", "fused", "plain"))
    _add_patience(parser)
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/bench-growth.csv"),
                        help="CSV file; the figure lies beside it, as PNG and SVG")  # fmt: skip
    parser.set_defaults(act=_growth)


def add_loader(parser: argparse.ArgumentParser) -> None:
    ways = ("resident", "ahead", "processes", "between")
    _add_steps(parser, backbones=["saf", "sgr"], ways=ways)
    parser.add_argument("--format", choices=("float16", "float32"), default="float16", help="on disk")
    parser.add_argument("--threads", type=int, default=4, help="that read ahead, or processes")
    parser.add_argument("--images", type=int, default=4000, help="in the file: 147 kB each in float16")
    parser.add_argument("--steps", type=int, default=150, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each way, the best counts")
    parser.add_argument("--folder", type=Path, help="where the file is made for a while; the system's choice")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the rows there as CSV, after each one")
    parser.set_defaults(act=_loader)


def add_tiles(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[4096, 8192, 16384, 32768], help="pairs"
    )
    parser.add_argument("--width", type=int, default=512, help="of the embeddings")
    parser.add_argument("--device", help="cuda where there is one, else cpu")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the rows there as CSV, after each one")
    parser.set_defaults(act=_tiles)


def _add_steps(parser: argparse.ArgumentParser, *, backbones: list[str], ways: tuple[str, ...]) -> None:
    parser.add_argument("backbones", nargs="*", default=backbones, help="names of backbones")
    parser.add_argument("--device", help="cuda where there is one, else cpu")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--precision", choices=("bf16", "float32"), help="bf16 on cuda, else float32")
    parser.add_argument("--ways", nargs="+", choices=ways, default=list(ways), help="of computing or loading")
    parser.add_argument("--budget-seconds", type=float, default=480.0, help="what does not fit is skipped")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too, after each one")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the program itself")


def _add_patience(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--patience", type=float, default=3.0, help="seconds to repeat one measurement")


def _speed(args: argparse.Namespace) -> int:
    from sremkit.bench.speed import run as measure

    _check_steps(args)
    return _exit_code(measure(args))


def _growth(args: argparse.Namespace) -> int:
    from sremkit.bench.growth import run as measure

    _check_steps(args)
    return _exit_code(measure(args))


def _loader(args: argparse.Namespace) -> None:
    from sremkit.bench.loader import run as measure

    _check_steps(args)
    measure(args)


def _tiles(args: argparse.Namespace) -> None:
    from sremkit.bench.tiles import run as measure
    from sremkit.training.processes import this_process

    if min(*args.batch_sizes, args.width) < 2:
        raise UserError("--batch-sizes and --width must be 2 or more")
    args.device = this_process(args.device or "auto").device
    measure(args)


def _check_steps(args: argparse.Namespace) -> None:
    """Refuse backbones and a device that there are not, before anything is measured."""
    from sremkit.models import BACKBONES
    from sremkit.training.processes import this_process

    for name in args.backbones:
        BACKBONES[name]
    if args.device is not None:
        args.device = str(this_process(args.device).device)


def _exit_code(result: dict[str, Any]) -> int:
    """1 if a measurement failed: the others were made all the same, but a script must learn of it."""
    failed, done = len(result["failed"]), len(result["rows"])
    if failed:
        print(f"\n{failed} of {failed + done} measurements failed")
    return 1 if failed else 0
