"""Train a model from a recipe, or go on with a run that was stopped.

srem train scenes-srem
srem train flickr8k-dual-srem --set noise.rate=0.6 --out runs/mine
srem train --resume runs/mine
srem train --resume runs/mine --set training.epochs=20
srem train clip-finetune-srem --set data.source=pairs.csv --set model.folder=models/clip
srem train scenes-pixels-srem --init runs/mine
srem train scenes-srem --track wandb
srem train features-dual-srem --set data.source=features/mine --keep keep.txt
torchrun --nproc_per_node=2 -m sremkit train scenes-srem
"""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from sremkit.errors import UserError

HELP = "train a model from a recipe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", help="a recipe's name (see `srem list recipes`) or a .toml file")
    parser.add_argument("-o", "--out", type=Path, help="folder of the run (default: runs/RECIPE)")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="go on with the run in this folder")
    parser.add_argument(
        "--init", metavar="RUN_OR_FOLDER", help="begin with the weights of this run, exported model or pretrained model"
    )
    changed = (
        "change a setting, such as training.epochs=2; KEY= without a value takes a setting of the recipe back; may be "
        "repeated. A resumed run takes training.epochs alone, to go on for longer"
    )
    parser.add_argument("--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help=changed)
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="LIST",
        help="train only on the pairs whose ids are in this file, one a line; none of them is made wrong unless "
        "--set noise.rate says so",
    )
    tracked = "log to this tracker too, wandb or mlflow; may be repeated, and a resumed run goes on with its trackers"
    parser.add_argument("--track", metavar="TRACKER", action="append", default=[], help=tracked)
    printed = "print every setting of the run with its meaning, as a recipe, and stop"
    parser.add_argument("--print-config", action="store_true", help=printed)


def run(args: argparse.Namespace) -> None:
    from sremkit.config.recipes import extended, load_recipe
    from sremkit.describe import describe_recipe
    from sremkit.experiment import with_whole_paths
    from sremkit.training.run_folder import RunFolder
    from sremkit.training.trackers import check_names

    check_names(args.track)
    if (args.recipe is None) == (args.resume is None):
        raise UserError("name a recipe to train, or a run to go on with: srem train RECIPE, srem train --resume RUN")
    if args.resume is not None:
        if args.out or args.keep or args.init is not None:
            raise UserError("a resumed run keeps its settings and its folder; leave --keep, --init and --out away")
        recipe = extended(RunFolder.open(args.resume).recipe(), args.overrides)
    else:
        # Who keeps the right pairs does not want them made wrong again, as recipes for comparisons do.
        kept = ["noise.rate=0", f"data.keep={json.dumps(str(args.keep))}"] if args.keep else []
        start = [f"training.init={json.dumps(str(args.init))}"] if args.init is not None else []
        recipe = with_whole_paths(load_recipe(args.recipe, [*kept, *start, *args.overrides]))
    if args.print_config:
        print(describe_recipe(recipe), end="")
        return
    out = args.resume or args.out or Path("runs") / recipe.name
    _train(recipe, out, resumed=args.resume is not None, trackers=args.track)


def _train(recipe, out: Path, *, resumed: bool, trackers: list[str]) -> None:
    from rich.console import Console

    from sremkit.cli.progress import StageProgress
    from sremkit.config.recipes import recipe_to_toml
    from sremkit.data.noise import protocol_label
    from sremkit.experiment import prepare, train
    from sremkit.training.distributed import process_group
    from sremkit.training.reporters import ConsoleReporter
    from sremkit.training.run_folder import RunFolder

    with process_group(recipe.training.device) as process, ExitStack() as stack:
        console = Console(highlight=False, quiet=not process.is_main)
        folder = RunFolder(out)
        if not resumed and process.is_main:  # the others may come when the folder of this run is there already
            folder.refuse_existing()
        with StageProgress(console) as progress:
            prepared = prepare(recipe, process, decoding=partial(progress.stage, "images decoded"))
        if process.is_main:
            stack.enter_context(folder.locked())
            if not resumed:
                folder = RunFolder.create(out, config=recipe_to_toml(recipe))
            else:
                folder.prepare_resume()
                if folder.recipe() != recipe:
                    folder.change_config(recipe_to_toml(recipe))
        was_finished = resumed and folder.is_finished()
        noise = prepared.noise
        console.print(
            f"{recipe.name}: {recipe.method['name']} with {recipe.model['name']} on {len(prepared.train):,} "
            f"pairs, {100 * noise.rate:.1f} % of them made wrong ({protocol_label(noise.protocol)}, index "
            f"{noise.hash}), on {process.device}; the run is in {out}",
            soft_wrap=True,
        )
        if prepared.validates_on_training_pairs:
            console.print(
                "The data has no splits, so validation is on the training pairs and says what is learnt by heart: "
                "a column `split` with train, val and test would tell more.",
                soft_wrap=True,
            )
        epochs = recipe.training.warmup_epochs + recipe.training.epochs
        try:
            with ConsoleReporter(epochs, title=recipe.name, explain=True, console=console) as progress:
                record = train(prepared, folder, reporter=progress, trackers=("tensorboard", *trackers))
        except Exception:
            if process.is_main:
                folder.forget_if_never_begun()
            raise
        took = "was finished already" if was_finished else f"finished in {record['seconds']:.0f} s"
        console.print(
            f"\n{took}; best validation R_sum {record['best_rsum']:.1f}\n"
            f"  {folder.report}\n  srem eval {out} --split test",
            soft_wrap=True,
        )
