"""Compare methods under one protocol, again and again: grids of runs that keep what is finished.

srem bench methods --data flickr8k --backbone dual --noise 0.2,0.4,0.6 --seeds 3 -o results/dual.csv
srem bench methods --data f30k:/data/f30k_precomp --backbone sgr --methods srem,rcl --table f30k.md
srem bench methods --data flickr8k --backbone saf,sgr,saf+sgr --methods srem --noise 0.4
srem bench ablation --recipe flickr8k-dual-srem --noise 0.4 --seeds 3
srem bench questions --data flickr8k --backbone dual --only threshold,clean-set
srem bench efficiency --data flickr8k --backbone dual --methods srem,bicro,mscn
srem bench speed saf sgr --batch-size 128
srem bench growth saf sgr -o runs/growth.csv
srem bench loader saf --format float16
srem bench tiles --batch-sizes 4096 32768 --width 512
srem bench figures curves --from runs/bench-methods.csv --noise 0.6 -o figures
srem bench figures energies --recipe flickr8k-dual-srem -o figures
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sremkit.cli.bench_steps import add_growth, add_loader, add_speed, add_tiles
from sremkit.errors import UserError

if TYPE_CHECKING:
    from sremkit.bench.tables import Table

HELP = "compare methods, by command"
EVERY_METHOD = "hinge,hinge-mean,infonce,rcl,decl,ncr,bicro,mscn,srem,srem-plus"
COUNTS = (
    "seeds",
    "side_by_side",
    "epochs",
    "batch_size",
    "images",
    "steps",
    "rounds",
)  # of which one at least


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="benches", metavar="BENCH", required=True)

    def bench(name: str, help: str) -> argparse.ArgumentParser:
        description = f"{help[0].upper()}{help[1:]}."
        formatter = parser.formatter_class  # that of every command, which states the defaults there are
        return actions.add_parser(name, help=help, description=description, formatter_class=formatter)

    _add_methods(bench("methods", "methods against each other over noise rates and seeds"))
    _add_ablation(bench("ablation", "SREM's parts, one after another, as the paper's table"))
    _add_questions(bench("questions", "what the paper leaves open in SREM, one change at a time"))
    _add_efficiency(bench("efficiency", "what an epoch costs: seconds and memory of every method"))
    add_speed(bench("speed", "training steps and scoring of a backbone: plain, compiled, by kernels"))
    add_growth(bench("growth", "how a training step grows with batch, words, regions and width"))
    add_loader(bench("loader", "whether data read from disk keep up with the device"))
    add_tiles(bench("tiles", "the objective in tiles, for batches without end"))
    _add_figures(bench("figures", "the paper's figures, as PNG and SVG"))


def run(args: argparse.Namespace) -> int | None:
    for name in COUNTS:
        if getattr(args, name, 1) < 1:
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"{option} must be 1 or more, got {getattr(args, name)}")
    return args.act(args)


def _add_methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="flickr8k", help="first part of the recipes' names, or NAME:PATH")
    parser.add_argument(
        "--backbone", default="dual", help="comma-separated; saf+sgr is the mean of two, which are run too"
    )
    parser.add_argument("--methods", default=EVERY_METHOD, help="comma-separated")
    parser.add_argument(
        "--noise", help="comma-separated rates to add (default: 0.2,0.4,0.6; for cc152k, noisy by itself, 0)"
    )
    parser.add_argument("--protocol", choices=("caption", "image"), default="caption", help="noise protocol")
    _add_grid(parser, out="runs/bench-methods.csv")
    parser.set_defaults(act=_methods)


def _add_ablation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--recipe", default="flickr8k-dual-srem", help="of the whole method")
    parser.add_argument("--noise", default="0.4", help="comma-separated rates")
    _add_grid(parser, out="runs/bench-ablation.csv")
    parser.set_defaults(act=_ablation)


def _add_questions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="flickr8k", help="first part of the recipe's name, or NAME:PATH")
    parser.add_argument("--backbone", default="dual", help="second part of the recipe's name")
    parser.add_argument("--recipe", help="name or file, in the place of DATA-BACKBONE-srem")
    parser.add_argument(
        "--noise", help="comma-separated rates to add (default: 0.4,0.6; for cc152k, noisy by itself, 0)"
    )
    parser.add_argument("--only", default="", help="comma-separated questions or answers; all without it")
    _add_grid(parser, out="runs/bench-questions.csv")
    parser.set_defaults(act=_questions)


def _add_efficiency(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="flickr8k", help="first part of the recipes' names, or NAME:PATH")
    parser.add_argument("--backbone", default="dual")
    parser.add_argument("--methods", default=EVERY_METHOD, help="comma-separated")
    parser.add_argument("--epochs", type=int, default=2, help="measured, after one of warm-up")
    _add_common(parser, out="runs/bench-efficiency.csv")
    parser.set_defaults(act=_efficiency)


def _add_figures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("curves", "energies", "examples"), help="which figure")
    parser.add_argument("--from", dest="source", type=Path, default=Path("runs/bench-methods.csv"),
                        help="curves: the CSV of `srem bench methods`, its cells beside it")  # fmt: skip
    parser.add_argument("--noise", type=float, default=0.6, help="curves: which rate")
    parser.add_argument("--backbone", default="dual", help="curves: which backbone")
    parser.add_argument("--methods", help="curves: comma-separated (default: all there are)")
    parser.add_argument("--recipe", default="flickr8k-dual-srem", help="energies, examples: what to train")
    _add_set(parser, help="for the recipe")
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/figures"), help="folder")
    parser.set_defaults(act=_figures)


def _add_grid(parser: argparse.ArgumentParser, *, out: str) -> None:
    parser.add_argument("--seeds", type=int, default=3, help="how many; they count from 0")
    parser.add_argument("--side-by-side", type=int, default=1, help="cells that run at a time")
    _add_common(parser, out=out)


def _add_common(parser: argparse.ArgumentParser, *, out: str) -> None:
    _add_set(parser, help="for every cell")
    parser.add_argument("-o", "--out", type=Path, default=Path(out), help="CSV file")
    parser.add_argument(
        "--table", type=Path, action="append", default=[], metavar="FILE", help="also as .md, .tex or .html"
    )


def _add_set(parser: argparse.ArgumentParser, *, help: str) -> None:
    parser.add_argument(
        "--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help=help
    )


def _methods(args: argparse.Namespace) -> None:
    from sremkit.bench.means import means_of
    from sremkit.bench.methods import method_cells, methods_table, name_and_place, run_methods, usual_rates

    rates = usual_rates(args.data) if args.noise is None else _rates(args.noise)
    backbones = args.backbone.split(",")
    cells = method_cells(
        args.data,
        backbones,
        args.methods.split(","),
        rates,
        range(args.seeds),
        protocol=args.protocol,
        overrides=args.overrides,
    )
    means = means_of(cells, backbones)
    rows = run_methods(cells, args.out, means=means, side_by_side=args.side_by_side)
    added = f"noise per {args.protocol}" if any(rates) else "no noise added"
    title = f"{name_and_place(args.data)[0]}, {added}, mean ± deviation over {args.seeds} seeds"
    _show(methods_table(rows, title=title), args)


def _ablation(args: argparse.Namespace) -> None:
    from sremkit.bench.ablation import ablation_cells, ablation_table
    from sremkit.bench.grid import run_grid, write_csv

    rates = _rates(args.noise)
    cells = ablation_cells(args.recipe, rates, range(args.seeds), overrides=args.overrides)
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def tell(row: dict[str, Any]) -> None:
        parts = [name for name in ("filtration", "weighting", "complementary", "rectification") if row[name]]
        print(
            f"{row['rate']:g} {'+'.join(parts) or 'nothing'} {row['seed']}: val {row['val_rsum']:.1f}",
            flush=True,
        )

    rows = run_grid(cells, args.out.with_suffix(".cells"), side_by_side=args.side_by_side, on_row=tell)
    write_csv(rows, args.out)
    _show(ablation_table(rows), args)


def _questions(args: argparse.Namespace) -> None:
    from sremkit.bench.methods import name_and_place, usual_rates
    from sremkit.bench.questions import ask, choose, question_cells, questions_table

    data, located = name_and_place(args.data)
    recipe = args.recipe or f"{data}-{args.backbone}-srem"
    answers = choose([name for name in args.only.split(",") if name])
    rates = usual_rates(args.data, (0.4, 0.6)) if args.noise is None else _rates(args.noise)
    overrides = [*located, *args.overrides]
    cells = question_cells(recipe, answers, rates, range(args.seeds), overrides=overrides)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    _show(questions_table(ask(cells, args.out, side_by_side=args.side_by_side)), args)


def _efficiency(args: argparse.Namespace) -> None:
    from sremkit.bench.efficiency import efficiency_table, measure_efficiency
    from sremkit.bench.grid import write_csv

    rows = measure_efficiency(
        args.data,
        args.backbone,
        args.methods.split(","),
        args.out.with_suffix(".cells"),
        epochs=args.epochs,
        overrides=args.overrides,
        on_row=lambda row: print(
            f"{row['method']}: {row['filter_seconds']:.1f} s before an epoch, {row['train_seconds']:.1f} s in it, "
            f"{row['peak_memory_mb']:.0f} MB",
            flush=True,
        ),
    )
    write_csv(rows, args.out)
    _show(efficiency_table(rows), args)


def _figures(args: argparse.Namespace) -> None:
    from sremkit.bench import figures
    from sremkit.bench.grid import read_rows
    from sremkit.recipes import load_recipe

    if args.what == "curves":
        methods = args.methods.split(",") if args.methods else None
        rows = [
            row
            for row in read_rows(args.source)
            if row["backbone"] == args.backbone and float(row["rate"]) == args.noise
            if methods is None or row["method"] in methods
        ]
        if not rows:
            raise UserError(f"{args.source} has no cells of {args.backbone} at noise {args.noise:g}")
        files = figures.draw_curves(rows, args.out / f"curves-{args.backbone}-{args.noise:g}")
    else:
        prepared, energies = figures.energies_in_training(load_recipe(args.recipe, args.overrides))
        if args.what == "energies":
            files = figures.draw_energies(energies, prepared.is_noisy, args.out / f"energies-{args.recipe}")
        else:
            last = energies[1.0]
            files = figures.draw_examples(
                prepared.train, last, prepared.is_noisy, args.out / f"examples-{args.recipe}"
            )
    print("\n".join(map(str, files)))


def _rates(text: str) -> list[float]:
    """Of "0.2,0.4" the numbers."""
    try:
        rates = [float(rate) for rate in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 <= rate <= 1 for rate in rates):
        raise UserError(f"--noise takes comma-separated rates from 0 to 1, such as 0.2,0.4; got '{text}'")
    return rates


def _show(table: Table, args: argparse.Namespace) -> None:
    print(f"\n{table.as_text()}\n\nwritten to {args.out}")
    for file in args.table:
        table.write(file)
        print(f"           {file}")
