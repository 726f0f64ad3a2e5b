"""Train InfoNCE and SREM on generated scenes of which 40 % have a wrong caption.

srem demo
srem demo --set noise.rate=0.6 -o runs/demo-60

Takes about two minutes on two CPU cores, prints a table and writes a report.
"""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "train with and without SREM on noisy pairs, in about two minutes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/demo"), help="folder for runs and report")
    changed = "change a setting of both recipes, such as noise.rate=0.6; may be repeated"
    parser.add_argument("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help=changed)


def run(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    from sremkit.config.recipes import load_recipe
    from sremkit.demo import RECIPES, run_demo
    from sremkit.training.reporters import ConsoleReporter

    console = Console(highlight=False)
    rate = load_recipe(RECIPES["SREM"], args.overrides).noise.rate
    console.print(
        f"Training on generated scenes, {100 * rate:.0f} % of them with a wrong caption: SREM, and InfoNCE in a "
        "second process.\n",
        soft_wrap=True,
    )
    results = run_demo(
        args.out,
        lambda title, epochs: ConsoleReporter(epochs, title=title, explain=True, console=console),
        args.overrides,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("\nmethod")
    for heading in ("R_sum on the\nclean test split", "mismatch\nAUROC", "noisy-gradient\nratio", "\nseconds"):
        table.add_column(heading, justify="right")
    for result in results:
        ratio = result.noisy_gradient_ratio
        table.add_row(
            result.title,
            f"{result.recall['rsum']:.1f}",
            f"{result.detection['auroc']:.3f}" if result.is_noisy.any() else "-",
            "-" if ratio is None else f"{100 * ratio:.1f} %",
            f"{result.seconds:.0f}",
        )
    console.print()
    console.print(table)
    console.print(
        f"\nMismatched pairs, energies and curves: {args.out / 'report.html'}\n\n"
        "Next steps:\n"
        "  srem demo --set noise.rate=0.6        more mismatched pairs\n"
        "  srem list                             methods, models, formats and recipes\n"
        "  srem train scenes-srem --out runs/my  a run of your own\n"
        "  from sremkit import SREM              the loss in your own loop: SREM()(logits).total.backward()",
        soft_wrap=True,
    )
