"""Compare methods under one protocol. Finished runs are kept, so that an interrupted or larger table continues.

srem bench methods --data scenes                     # generated data, no download
srem bench methods --data scenes --methods all --noise 0.6 --seeds 1
srem bench methods --data flickr8k --backbone dual --noise 0.2,0.4,0.6 --seeds 3 -o results/dual.csv
srem bench methods --data f30k:/data/f30k_precomp --backbone sgr --methods srem,rcl --table f30k.md
srem bench methods --data flickr8k --backbone saf,sgr,saf+sgr --methods srem --noise 0.4
srem bench methods --from results/dual.csv           # the table of finished runs, with intervals
srem bench ablation --recipe scenes-srem --noise 0.4 --seeds 3
srem bench audit --data flickr8k-one --kinds random,shared-word --sizes 6000 --seeds 3 --table audit.md
srem bench audit --data pairs.csv --truth is_wrong --image path --text caption
srem bench efficiency --data flickr8k --backbone dual --methods srem,bicro,mscn
srem bench figures curves --from runs/bench-methods.csv --noise 0.6 -o figures
srem bench figures cost --from runs/bench-methods.csv --noise 0.6 -o figures
srem bench figures energies --recipe scenes-srem -o figures
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from sremkit.cli import numbers
from sremkit.config.recipes import NoiseProtocol
from sremkit.errors import UserError

if TYPE_CHECKING:
    from sremkit.bench.tables import Table

HELP = "compare methods: tables, ablation, cost, figures"
MANY = 20  # runs; with more, their number is printed first
COUNTS = ("seeds", "jobs", "epochs")  # 1 or more
FILE_OPTIONS = ("image", "text", "image_root")  # of `srem bench audit`
#: Benches that moved to the folder `benchmarks` of the repository, which is not installed.
MOVED = ("speed", "growth", "loader", "tiles", "questions")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="benches", metavar="BENCH", required=True)

    def bench(name: str, act: Callable[[argparse.Namespace], None], help: str) -> argparse.ArgumentParser:
        examples = [line for line in (__doc__ or "").splitlines() if line.startswith(f"srem bench {name} ")]
        description = f"{help[0].upper()}{help[1:]}.\n\n" + "\n".join(examples)
        command = actions.add_parser(name, help=help, description=description)
        command.set_defaults(act=act)
        return command

    _add_methods(bench("methods", _methods, "recall of several methods over noise rates and seeds"))
    _add_ablation(bench("ablation", _ablation, "SREM's parts added one after another, as in the paper's table"))
    _add_audit(bench("audit", _audit, "the audit against other detectors of wrong pairs"))
    _add_efficiency(bench("efficiency", _efficiency, "seconds and memory of an epoch of each method"))
    _add_figures(bench("figures", _figures, "the paper's figures, as PNG and SVG"))
    for name in MOVED:  # without `help`, so that the list of benches omits them
        moved = actions.add_parser(name, add_help=False, prefix_chars="\0")  # accepts whatever follows
        moved.add_argument("rest", nargs="*")
        moved.set_defaults(act=_moved, name=name)


def run(args: argparse.Namespace) -> None:
    for name in COUNTS:
        if getattr(args, name, 1) < 1:
            raise UserError(f"--{name} must be 1 or more, got {getattr(args, name)}")
    if hasattr(args, "table") and (not args.out.name or args.out.is_dir()):
        raise UserError(f"-o {args.out} is a folder; name a CSV file")
    args.act(args)


def _add_methods(parser: argparse.ArgumentParser) -> None:
    _add_selection(parser, backbone="comma-separated; saf+sgr is the mean of both, which are trained too")
    parser.add_argument(
        "--noise", help="comma-separated rates to add (default: 0.2,0.4,0.6; for cc152k, which has real noise, 0)"
    )
    parser.add_argument("--protocol", choices=get_args(NoiseProtocol), default="caption", help="noise protocol")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="CSV", help="print the table of these finished rows; train nothing"
    )
    add_grid_arguments(parser, out="runs/bench-methods.csv")


def _add_ablation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", default="flickr8k-dual-srem", help="recipe of SREM with all parts")
    parser.add_argument("--noise", default="0.4", help="comma-separated rates")
    add_grid_arguments(parser, out="runs/bench-ablation.csv")


def _add_audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        default="flickr8k-one",
        help="comma-separated: flickr8k-one, flickr8k-five (captions per image), scenes, or a file with --truth",
    )
    parser.add_argument("--detectors", help="comma-separated (default: all)")
    parser.add_argument(
        "--kinds",
        default="random,shared-word",
        help="comma-separated kinds of wrong captions: random, shared-word, near, absent, one-word",
    )
    parser.add_argument("--noise", default="0.4", help="comma-separated rates")
    parser.add_argument("--sizes", help="comma-separated numbers of pairs (default: 6000, or all pairs of a file)")
    parser.add_argument("--seeds", type=numbers.whole_number(most=1000), default=3, help="number of seeds, from 0")
    parser.add_argument("--precision", type=float, default=0.95, help="precision that is asked for")
    parser.add_argument("--truth", metavar="COLUMN", help="of a file: 1 where the pair is wrong, 0 where it is right")
    for name in FILE_OPTIONS:
        metavar = "DIR" if name == "image_root" else "COLUMN"
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, metavar=metavar, help=f"of a file: as for `srem audit {option}`")
    parser.add_argument(
        "--again", default="", metavar="DETECTORS", help="comma-separated; run their finished cells again"
    )
    parser.add_argument("-j", "--jobs", type=numbers.workers, default=1, metavar="N", help="cells at a time")
    parser.add_argument("--figure", type=Path, metavar="STEM", help="also draw AUROC as STEM.png and STEM.svg")
    _add_files(parser, out="runs/bench-audit.csv")


def _add_efficiency(parser: argparse.ArgumentParser) -> None:
    _add_selection(parser, backbone="one backbone")
    parser.add_argument(
        "--epochs",
        type=numbers.whole_number(most=1_000_000),
        default=2,
        help="measured epochs, after one epoch of warm-up",
    )
    _add_common(parser, out="runs/bench-efficiency.csv")


def _add_selection(parser: argparse.ArgumentParser, *, backbone: str) -> None:
    data = "first part of the recipes' names, or NAME:PATH; scenes are generated and need no files"
    parser.add_argument("--data", default="flickr8k", help=data)
    parser.add_argument("--backbone", help=f"{backbone} (default: vse-infty for scenes, otherwise dual)")
    parser.add_argument(
        "--methods", default="all", help="comma-separated, or all (the default) for every registered one"
    )


def _add_figures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("figure", choices=("curves", "cost", "energies", "examples"))
    parser.add_argument("--from", dest="source", type=Path, default=Path("runs/bench-methods.csv"),
                        help="curves, cost: CSV of `srem bench methods`, with its folder of cells")  # fmt: skip
    parser.add_argument("--noise", type=float, help="curves, cost: noise rate (default: the highest of the CSV)")
    parser.add_argument("--backbone", help="curves, cost: backbone (default: the first of the CSV)")
    parser.add_argument("--methods", help="curves, cost: comma-separated (default: all of the CSV)")
    parser.add_argument("--recipe", default="flickr8k-dual-srem", help="energies, examples: recipe to train")
    _add_set(parser, help="setting of the recipe")
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/figures"), help="folder")


def add_grid_arguments(parser: argparse.ArgumentParser, *, out: str) -> None:
    parser.add_argument("--seeds", type=numbers.whole_number(most=1000), default=3, help="number of seeds, from 0")
    parser.add_argument("-j", "--jobs", type=numbers.workers, default=1, metavar="N", help="runs at a time")
    _add_common(parser, out=out)


def _add_common(parser: argparse.ArgumentParser, *, out: str) -> None:
    _add_set(parser, help="setting of every run; in `methods`, training.epochs counts the warm-up too")
    _add_files(parser, out=out)


def _add_files(parser: argparse.ArgumentParser, *, out: str) -> None:
    parser.add_argument("-o", "--out", type=Path, default=Path(out), help="CSV file")
    parser.add_argument(
        "--table", type=Path, action="append", default=[], metavar="FILE", help="also as .md, .tex or .html"
    )


def _add_set(parser: argparse.ArgumentParser, *, help: str) -> None:
    parser.add_argument("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help=help)


def _methods(args: argparse.Namespace) -> None:
    from sremkit.bench import methods
    from sremkit.bench.division import division_table
    from sremkit.bench.ensembles import means_of
    from sremkit.bench.grid import read_csv
    from sremkit.data.noise import protocol_label

    if args.source is not None:
        rows = read_csv(args.source)
        title = f"{args.source.stem}, mean ± standard deviation over seeds"
        show_table(methods.methods_table(methods.with_recipes(rows), title=title), args, written=False)
        return
    rates = methods.default_rates(args.data) if args.noise is None else parse_rates(args.noise)
    backbones = (args.backbone or methods.default_backbone(args.data)).split(",")
    settings = {"protocol": args.protocol, "overrides": args.overrides}
    cells = methods.method_cells(args.data, backbones, _method_names(args), rates, range(args.seeds), **settings)
    if len(cells) > MANY:
        print(f"{len(cells)} runs; --methods, --noise and --seeds select fewer", flush=True)
    rows = methods.run_methods(cells, args.out, means=means_of(cells, backbones), jobs=args.jobs)
    added = f"noise {protocol_label(args.protocol)}" if any(rates) else "no noise added"
    over = "1 seed" if args.seeds == 1 else f"mean ± standard deviation over {args.seeds} seeds"
    title = f"{methods.split_data(args.data)[0]}, {added}, {over}"
    show_table(methods.methods_table(rows, title=title), args)
    division = division_table(rows, title=f"{title}: division and cost")
    print(f"\n{division.as_text()}")
    for file in args.table:
        division.write(file.with_stem(f"{file.stem}-division"))
        print(f"           {file.with_stem(f'{file.stem}-division')}")


def _ablation(args: argparse.Namespace) -> None:
    from sremkit.bench.ablation import PARTS, ablation_cells, ablation_table
    from sremkit.bench.grid import run_grid, write_csv

    cells = ablation_cells(args.recipe, parse_rates(args.noise), range(args.seeds), overrides=args.overrides)
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def report(row: dict[str, Any]) -> None:
        parts = "+".join(name for name in PARTS if row[name]) or "none"
        print(f"{row['rate']:g} {parts} {row['seed']}: val {row['val_rsum']:.1f}", flush=True)

    rows = run_grid(cells, args.out.with_suffix(".cells"), jobs=args.jobs, on_row=report)
    write_csv(rows, args.out)
    show_table(ablation_table(rows), args)


def _audit(args: argparse.Namespace) -> None:
    from sremkit.bench import audit
    from sremkit.bench.grid import write_csv

    if not 0 < args.precision <= 1:
        raise UserError(f"--precision must lie above 0 and at most at 1, got {args.precision:g}")
    again = [name for name in args.again.split(",") if name]
    if unknown := sorted(set(again) - set(audit.DETECTORS)):
        raise UserError(f"--again: '{unknown[0]}' is none of {', '.join(audit.DETECTORS)}")
    options = {name: value for name in FILE_OPTIONS if (value := getattr(args, name)) is not None}
    cells = audit.audit_cells(
        args.data.split(","),
        args.detectors.split(",") if args.detectors else audit.DETECTORS,
        args.kinds.split(","),
        parse_rates(args.noise),
        parse_sizes(args.sizes) if args.sizes else [],
        range(args.seeds),
        precision=args.precision,
        truth=args.truth,
        options=options,
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = audit.run_audit_bench(
        cells,
        args.out.with_suffix(".cells"),
        jobs=args.jobs,
        again=again,
        on_row=lambda row: print(
            f"{row['data']} {row['kind']} {row['rate']:g} {row['seed']} {row['detector']}: AUROC {row['auroc']:.3f}, "
            f"{row['seconds']:.0f} s",
            flush=True,
        ),
    )
    write_csv(rows, args.out)
    show_table(audit.audit_table(rows), args)
    if args.figure is not None:
        print("\n".join(f"           {file}" for file in audit.draw_audit_figure(rows, args.figure)))


def _efficiency(args: argparse.Namespace) -> None:
    from sremkit.bench.efficiency import efficiency_table, measure_efficiency
    from sremkit.bench.grid import write_csv
    from sremkit.bench.methods import default_backbone

    rows = measure_efficiency(
        args.data,
        args.backbone or default_backbone(args.data),
        _method_names(args),
        args.out.with_suffix(".cells"),
        epochs=args.epochs,
        overrides=args.overrides,
        on_row=lambda row: print(
            f"{row['method']}: per epoch {row['filter_seconds']:.1f} s before training and "
            f"{row['train_seconds']:.1f} s of training, {row['peak_memory_mb']:.0f} MB",
            flush=True,
        ),
    )
    write_csv(rows, args.out)
    show_table(efficiency_table(rows), args)


def _figures(args: argparse.Namespace) -> None:
    from sremkit.bench import figures
    from sremkit.bench.grid import read_rows
    from sremkit.config.recipes import load_recipe

    if args.figure in ("curves", "cost"):
        rows = read_rows(args.source)
        backbone = args.backbone or rows[0]["backbone"]
        rates = [float(row["rate"]) for row in rows if row["backbone"] == backbone]
        noise = max(rates, default=0.0) if args.noise is None else args.noise
        rows = [row for row in rows if row["backbone"] == backbone and float(row["rate"]) == noise]
        if args.methods:
            rows = [row for row in rows if row["method"] in args.methods.split(",")]
        if not rows:
            raise UserError(f"{args.source} has no cells of {backbone} at noise {noise:g}")
        draw = figures.draw_curves if args.figure == "curves" else figures.draw_cost
        files = draw(rows, args.out / f"{args.figure}-{backbone}-{noise:g}")
    else:
        prepared, energies = figures.energies_in_training(load_recipe(args.recipe, args.overrides))
        stem = args.out / f"{args.figure}-{args.recipe}"
        if args.figure == "energies":
            files = figures.draw_energies(energies, prepared.is_noisy, stem)
        else:
            files = figures.draw_examples(prepared.train, energies[1.0], prepared.is_noisy, stem)
    print("\n".join(map(str, files)))


def _moved(args: argparse.Namespace) -> None:
    raise UserError(
        f"`srem bench {args.name}` is now `python -m benchmarks.{args.name}`, run in a checkout of the repository"
    )


def _method_names(args: argparse.Namespace) -> list[str]:
    from sremkit.methods import METHODS

    return list(METHODS) if args.methods in (None, "all") else args.methods.split(",")


def parse_rates(text: str) -> list[float]:
    """Of "0.2,0.4" the numbers."""
    try:
        rates = [float(rate) for rate in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 <= rate <= 1 for rate in rates):
        raise UserError(f"--noise takes comma-separated rates from 0 to 1, such as 0.2,0.4; got '{text}'")
    return rates


def parse_sizes(text: str) -> list[int]:
    """Of "400,6000" the numbers."""
    sizes = [int(size) for size in text.split(",") if re.fullmatch(r"\s*[0-9]{1,10}\s*", size)]
    if len(sizes) != len(text.split(",")) or min(sizes) < 1:
        raise UserError(f"--sizes takes comma-separated numbers of pairs, such as 400,6000; got '{text:.100}'")
    return sizes


def show_table(table: Table, args: argparse.Namespace, *, written: bool = True) -> None:
    """Print the table and the files it was written to; `written`: the CSV file is one of them."""
    print(f"\n{table.as_text()}\n" + (f"\nwritten to {args.out}" if written else ""))
    for file in args.table:
        table.write(file)
        print(f"           {file}")
