"""Every method on equal terms: the same validation trials over the same grid, and controls.

    python -m benchmarks.equal_terms --noise 0.6
    python -m benchmarks.equal_terms --methods rcl,srem-plus --noise 0.4 --seeds 3
    python -m benchmarks.equal_terms --methods l2rm --trials results/flickr8k-dual-equal-terms-2026-11-18.csv
    python -m benchmarks.equal_terms --from results/flickr8k-dual-equal-terms-2026-11-18.csv   # the tables again
    python -m benchmarks.equal_terms --controls all --noise 0.6
    python -m benchmarks.equal_terms --controls rcl,srem-plus,srem-plus-without-rematching --protocol absent

A trial is the shipped recipe of the method with learning rate, dropout and averaged weights of the grid; the options of
the method stay those of the recipe. Every trial may train for 40 epochs, warm-up included, at a constant learning rate,
and ends when validation R_sum has not risen for `PATIENCE` epochs. Trials run with seed 0. The trial with the best
validation R_sum then runs with the other seeds, and its test results are compared, paired by seed, single networks
with single networks. All trials are in the CSV file.

A control is the recipe of a method with one thing changed; it answers what a difference comes from.
"""

from __future__ import annotations

import argparse
import threading
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, ParamSpec, TypeVar, get_args

import numpy as np

from benchmarks.commands import make_parser, run_command
from sremkit.bench.differences import METRIC, NOTE, Difference, differences_to_best_rival
from sremkit.bench.division import division_table
from sremkit.bench.ensembles import Mean, keys_to_keep, mean_rows
from sremkit.bench.figures import draw_cost
from sremkit.bench.grid import cell_key, read_csv, read_row, row_file, run_cell, run_grid, write_csv
from sremkit.bench.methods import method_recipe, split_data
from sremkit.bench.tables import Table, bold, grouped, mean_and_deviation
from sremkit.cli.bench import add_grid_arguments, parse_rates, show_table
from sremkit.config.recipes import NoiseProtocol, Recipe, recipe_from_table, recipe_to_toml
from sremkit.config.settings import suggestion
from sremkit.data.batch import Batch
from sremkit.data.noise import protocol_label
from sremkit.data.training_pairs import keep_list_lines, noise_for, read_training_pairs
from sremkit.errors import UnknownNameError, UserError
from sremkit.methods import METHODS, Forward
from sremkit.methods.infonce import InfoNCE
from sremkit.methods.rcl import RCL
from sremkit.objectives import Loss

P = ParamSpec("P")
R = TypeVar("R")
Cell = tuple[dict[str, Any], Recipe]
SINGLE_NETWORK = ("infonce", "rcl", "decl", "srem", "srem-plus")
MAX_EPOCHS = 40
PATIENCE = 4
#: Learning rate, dropout, decay of the averaged weights (0 for none).
GRID = ((1e-3, 0.5, 0.999), (5e-4, 0.5, 0.999), (1e-3, 0.3, 0.999), (1e-3, 0.5, 0.0))
SHOWN = {
    "val_rsum": "validation R_sum",
    "test_rsum": "test R_sum",
    "difference": "against the best rival",
    "train_auroc": "AUROC",
    "crowd_auroc": "crowd",
    "noisy_pull_ratio": "noisy pull",
    "epochs": "epochs",
    "setting": "rate, dropout, EMA",
}


#: Settings that change how a run is executed, not what it computes; rows with and without them can be compared.
OF_EXECUTION = ("training.compile=", "training.cuda_graphs=", "training.workers=")
RCL_AFTER_INFONCE = "rcl-after-infonce"


@dataclass(kw_only=True, eq=False)
class RCLAfterInfoNCE(RCL):
    """RCL whose warm-up is InfoNCE; a control, not a published method, and registered only while controls run."""

    has_warmup: ClassVar[bool] = True

    def loss(self, forward: Forward, batch: Batch, *, warmup: bool) -> Loss:
        if warmup:
            return InfoNCE().loss(forward, batch, warmup=True)
        return super().loss(forward, batch, warmup=False)


def register_controls() -> None:
    """Make the methods known that only controls use."""
    if RCL_AFTER_INFONCE not in METHODS:
        METHODS.register(RCL_AFTER_INFONCE)(RCLAfterInfoNCE)


def run_control(recipe: Recipe, threads: int | None = None, keep_scores: Path | None = None) -> dict[str, Any]:
    """`run_cell` in a process that may not know the methods of controls."""
    register_controls()
    return run_cell(recipe, threads, keep_scores)


class Control(NamedTuple):
    """The recipe of a method with one change."""

    name: str
    base: str  # the recipe of this method
    overrides: tuple[str, ...] = ()
    method: str | None = None  # in the place of the base, with its options
    right_only: bool = False  # train on the right pairs alone, known from the truth
    networks: int = 1  # 2: the mean score of two runs on the same noise, which know nothing of each other


CONTROLS = (
    Control("infonce", "infonce"),
    Control("rcl", "rcl"),
    Control("rcl-right-pairs-only", "rcl", right_only=True),
    Control("infonce-right-pairs-only", "infonce", right_only=True),
    Control("rcl-after-two-epochs-of-infonce", "rcl", ("training.warmup_epochs=2",), RCL_AFTER_INFONCE),
    Control("srem-plus", "srem-plus"),
    Control("srem-plus-without-rematching", "srem-plus", ("method.rematch_top_k=0",)),
    Control("srem-plus-without-memory", "srem-plus", ("method.decay=0.0",)),
    Control("srem-plus-without-ema", "srem-plus", ("training.ema_decay=0.0",)),
    Control("srem-plus-two-networks", "srem-plus", networks=2),
)
#: Added to the training seed of the second of two networks.
SECOND_NETWORK = 1000


def trial_cells(
    data: str, backbone: str, methods: Sequence[str], rates: Sequence[float], settings: Sequence[str] = ()
) -> list[Cell]:
    """Every method with every point of the grid, seed 0; `settings` are of every run."""
    name, source = split_data(data)
    return [
        _trial(name, backbone, method, rate, trial, 0, [*source, *settings])
        for rate in rates
        for method in methods
        for trial in range(len(GRID))
    ]


def _trial(data: str, backbone: str, method: str, rate: float, trial: int, seed: int, given: Sequence[str]) -> Cell:
    learning_rate, dropout, ema_decay = GRID[trial]
    settings = [*given, f"noise.rate={rate}", f"noise.seed={seed}", f"training.seed={seed}"]
    settings += [f"training.learning_rate={learning_rate}", f"model.dropout={dropout}"]
    settings += [f"training.ema_decay={ema_decay}"]
    recipe = method_recipe(data, backbone, method, settings).recipe
    recipe = until_validation_stops(recipe)
    labels = {"data": data, "backbone": backbone, "method": method, "rate": rate, "trial": trial, "seed": seed}
    labels |= {"learning_rate": learning_rate, "dropout": dropout, "ema_decay": ema_decay}
    return labels, recipe


def until_validation_stops(recipe: Recipe) -> Recipe:
    """Up to `MAX_EPOCHS` epochs, warm-up included, at a constant rate, until validation R_sum stops rising."""
    epochs = MAX_EPOCHS - recipe.training.warmup_epochs
    return replace(recipe, training=replace(recipe.training, epochs=epochs, decay_after=epochs, patience=PATIENCE))


def chosen_cells(trials: Sequence[dict[str, Any]], seeds: Sequence[int], settings: Sequence[str] = ()) -> list[Cell]:
    """The best trial of each method and rate by validation R_sum, with the other seeds."""
    return [
        _trial(data, backbone, method, rate, best, seed, settings)
        for (data, backbone, method, rate), best in best_trials(trials).items()
        for seed in seeds
    ]


def best_trials(trials: Sequence[dict[str, Any]]) -> dict[tuple, int]:
    """By (data, backbone, method, rate), the number of the trial with the best validation R_sum; seed 0 decides."""
    first = [row for row in trials if row["seed"] == 0]
    return {
        place: max(members, key=lambda row: row["val_rsum"])["trial"]
        for place, members in grouped(first, "data", "backbone", "method", "rate").items()
    }


def chosen_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of all trials, those that are compared: the best one of each method and rate, with every seed."""
    best = best_trials(rows)
    return [row for row in rows if row["trial"] == best[row["data"], row["backbone"], row["method"], row["rate"]]]


def control_cells(
    data: str,
    backbone: str,
    controls: Sequence[Control],
    rates: Sequence[float],
    seeds: Sequence[int],
    folder: Path,
    *,
    protocol: str = "caption",
    settings: Sequence[str] = (),
) -> list[Cell]:
    """Every control for each noise rate and seed; keep-lists of right pairs are written into `folder`.

    A control of two networks has two cells, whose labels say which of them is the second.
    """
    name, source = split_data(data)
    cells = []
    for rate, control, seed in product(rates, controls, seeds):
        for network in range(control.networks):
            of_cell = [f"noise.rate={rate}", f"noise.seed={seed}", f"noise.protocol={protocol}"]
            of_cell += [f"training.seed={seed + network * SECOND_NETWORK}"]
            recipe = method_recipe(name, backbone, control.base, [*source, *settings, *of_cell]).recipe
            recipe = recipe_from_table(tomllib.loads(recipe_to_toml(recipe)), control.overrides)
            if control.method is not None:  # with the options of the base
                recipe = replace(recipe, method={**recipe.method, "name": control.method})
            if control.right_only:
                recipe = right_pairs_only(recipe, folder)
            labels = {"data": name, "backbone": backbone, "method": control.name, "rate": rate, "seed": seed}
            labels |= {"protocol": protocol} | ({"network": network} if control.networks > 1 else {})
            cells.append((labels, recipe))
    return cells


def run_controls(cells: Sequence[Cell], folder: Path, *, jobs: int) -> list[dict[str, Any]]:
    """A row for each control, noise rate and seed; that of two networks is of their mean score."""
    names = ("data", "backbone", "method", "rate", "seed", "protocol")
    networks = grouped([{**labels, "recipe": recipe} for labels, recipe in cells if "network" in labels], *names)
    means = [
        Mean(dict(zip(names, place, strict=True)), (first["recipe"], second["recipe"]))
        for place, (first, second) in networks.items()
    ]
    keep = keys_to_keep(means, folder)
    rows = run_grid(cells, folder, jobs=jobs, keep_scores=keep, on_row=_report, run=run_control)
    return [row for row in rows if "network" not in row] + mean_rows(means, folder)


def right_pairs_only(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe on the pairs that its noise leaves right, without the others."""
    clean = read_training_pairs(recipe.data)
    noise = noise_for(recipe.noise, clean)
    right = [clean.pair_ids[k] for k in np.flatnonzero(~noise.is_noisy).tolist()]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"right-{noise.hash}.txt"
    file.write_text("".join(keep_list_lines(right)), encoding="utf-8")
    data = replace(recipe.data, keep=str(file))
    # Fewer pairs, so fewer updates in an epoch: the recipe's number of epochs would be too small.
    return until_validation_stops(replace(recipe, data=data, noise=replace(recipe.noise, rate=0.0)))


def equal_terms_table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    """Mean ± standard deviation over seeds."""
    gains = differences_to_best_rival(rows)
    shown = {key: name for key, name in SHOWN.items() if key not in ("difference", "setting") or "trial" in rows[0]}
    table = Table(title, ["method", "seeds", *shown.values()])
    networks = {1: "", 2: ", two networks"}
    for (rate, number), of_rate in grouped([{"networks": 1, **row} for row in rows], "rate", "networks").items():
        lines = []
        for (data, backbone, method), members in grouped(of_rate, "data", "backbone", "method").items():
            gain = gains.get((data, backbone, rate, method))
            lines.append([method, str(len(members)), *(_cell(members, key, gain) for key in shown)])
        table.add_section(f"{rate:.0%} noise{networks[number]}", lines)
    if gains:
        table.notes.append(NOTE)
    return table


def _cell(members: Sequence[dict[str, Any]], key: str, gain: Difference | None) -> str:
    if key == "difference":
        return "-" if gain is None else str(gain)
    if key == "setting":
        first = members[0]
        return f"{first['learning_rate']:g}, {first['dropout']:g}, {first['ema_decay']:g}"
    values = [member[key] for member in members if member.get(key) is not None]
    if key == "epochs":
        return ", ".join(map(str, values)) or "-"
    text = mean_and_deviation(values, key)
    return bold(text) if key == METRIC and gain is not None and gain.is_ahead else text


def choose_controls(names: str) -> list[Control]:
    """The controls with these names, comma-separated, or all of them."""
    known = {control.name: control for control in CONTROLS}
    for name in names.split(","):
        if name != "all" and name not in known:
            raise UnknownNameError(f"there is no control called '{name}'; {suggestion(name, known)}")
    return list(CONTROLS) if names == "all" else [known[name] for name in names.split(",")]


def build_parser() -> argparse.ArgumentParser:
    parser = make_parser("equal_terms", __doc__)
    parser.add_argument("--data", default="flickr8k", help="first part of the recipes' names, or NAME:PATH")
    parser.add_argument("--backbone", default="dual", help="second part of the recipes' names")
    parser.add_argument("--methods", default=",".join(SINGLE_NETWORK), help="comma-separated")
    parser.add_argument("--controls", help="run these controls instead of trials: comma-separated names, or all")
    parser.add_argument(
        "--from",
        dest="source_file",
        type=Path,
        metavar="CSV",
        help="show the tables of this file of trials or controls; runs nothing",
    )
    parser.add_argument(
        "--trials",
        type=Path,
        metavar="CSV",
        help="take the rows of this file, such as one of fewer seeds; run the others",
    )
    parser.add_argument(
        "--figure",
        type=Path,
        metavar="STEM",
        help="draw R_sum against cost as STEM.png and STEM.svg, with several noise rates as STEM-RATE.png",
    )
    parser.add_argument("--noise", default="0.6", help="comma-separated rates")
    parser.add_argument(
        "--protocol", choices=get_args(NoiseProtocol), default="caption", help="noise protocol of the controls"
    )
    add_grid_arguments(parser, out="runs/equal-terms.csv")
    return parser


def run(args: argparse.Namespace) -> None:
    if args.source_file is not None:
        rows = read_csv(args.source_file)
        if "trial" in rows[0]:
            show_chosen(chosen_rows(rows), args, written=False)
        else:
            show_controls(rows, args, written=False)
        return
    rates, folder = parse_rates(args.noise), args.out.with_suffix(".cells")
    _, source = split_data(args.data)
    if args.controls:
        controls = choose_controls(args.controls)
        register_controls()
        seeds = range(args.seeds)
        options = {"protocol": args.protocol, "settings": args.overrides}
        cells = control_cells(args.data, args.backbone, controls, rates, seeds, folder, **options)
        rows = run_controls(cells, folder, jobs=args.jobs)
        write_csv(rows, args.out)
        show_controls(rows, args)
    else:
        others = [setting for setting in args.overrides if not setting.startswith(OF_EXECUTION)]
        if args.trials is not None and (others or source):
            raise UserError(
                "--trials takes rows of the shipped recipes as they are: leave out --set, but for training.compile and "
                "other settings of the execution, and the path in --data"
            )
        known = [] if args.trials is None else read_csv(args.trials)
        grid = TrialGrid(known, args.out, jobs=args.jobs, settings=args.overrides)
        groups = [(method, rate) for rate in rates for method in args.methods.split(",")]
        chosen = grid.run(args.data, args.backbone, groups, range(args.seeds))
        show_chosen(chosen, args)


class TrialGrid:
    """Runs the trials of several methods and then their best ones with the other seeds, `jobs` runs at a time.

    No method waits for the trials of another, or for its failure. The CSV file is written after each run, so it holds
    what is finished if the command is stopped.

    Args:
        known: rows that are there already.
        settings: of every run, without the source of the data.
    """

    def __init__(self, known: Sequence[dict[str, Any]], out: Path, *, jobs: int, settings: Sequence[str] = ()) -> None:
        self.finished = {_place(row): row for row in known}
        self.out, self.jobs, self.settings = out, jobs, settings
        self._places: list[tuple] = []  # of the file, in order
        self._lock = threading.Lock()

    def run(
        self, data: str, backbone: str, groups: Sequence[tuple[str, float]], seeds: Sequence[int]
    ) -> list[dict[str, Any]]:
        """The rows of the chosen trials of each method and noise rate, with all seeds.

        Args:
            groups: methods with noise rates.
        """
        name, source = split_data(data)
        given = [*source, *self.settings]
        trials = [trial_cells(data, backbone, [method], [rate], self.settings) for method, rate in groups]
        seeds_in_order = [[0], [seed for seed in seeds if seed != 0]]
        possible = [
            _trial(name, backbone, labels["method"], labels["rate"], labels["trial"], seed, given)
            for some in seeds_in_order for group in trials for labels, _ in group for seed in some
        ]  # fmt: skip
        self._places = [_place(labels) for labels, _ in possible]
        self._refuse_other_rows()
        self._keep(finished_rows(possible, self._cells))
        if self.jobs == 1:
            return [row for group in trials for row in self._run_group(group, seeds, given, None)]
        # A thread for each method and rate, which waits for its runs in the pool.
        with StoppablePool(self.jobs) as pool, ThreadPoolExecutor(len(trials)) as waiting:
            futures = [waiting.submit(self._run_group, group, seeds, given, pool) for group in trials]
            try:
                wait(futures)
            except BaseException:
                pool.stop()
                raise
        return [row for future in futures for row in future.result()]

    @property
    def _cells(self) -> Path:
        return self.out.with_suffix(".cells")

    def _run_group(
        self, trials: Sequence[Cell], seeds: Sequence[int], given: Sequence[str], pool: ThreadPoolExecutor | None
    ) -> list[dict[str, Any]]:
        return self._run_missing(chosen_cells(self._run_missing(trials, pool), seeds, given), pool)

    def _run_missing(self, cells: Sequence[Cell], pool: ThreadPoolExecutor | None) -> list[dict[str, Any]]:
        """A row for each cell; those that are not there yet are run."""
        missing = [cell for cell in cells if _place(cell[0]) not in self.finished]
        self._keep(run_grid(missing, self._cells, jobs=self.jobs, pool=pool, on_row=self._report_and_keep))
        return [self.finished[_place(labels)] for labels, _ in cells]

    def _report_and_keep(self, row: dict[str, Any]) -> None:
        _report(row)
        self._keep([row])

    def _keep(self, rows: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            self.finished |= {_place(row): row for row in rows}
            if shown := [self.finished[place] for place in self._places if place in self.finished]:
                write_csv(shown, self.out)

    def _refuse_other_rows(self) -> None:
        """The file may hold rows that this grid would remove."""
        if not self.out.exists():
            return
        others = [row for row in read_csv(self.out) if "trial" not in row or _place(row) not in self._places]
        if others:
            of = f"{others[0]['method']} at {others[0]['rate']:g}"
            raise UserError(
                f"{self.out} holds {len(others)} rows of other runs, such as {of}; name another file with --out, or "
                "add their methods and noise rates to the command"
            )


class StoppablePool(ThreadPoolExecutor):
    """After `stop`, calls that have not begun raise an error, which those who wait for them see."""

    def __init__(self, num_threads: int) -> None:
        super().__init__(num_threads)
        self._stopped = threading.Event()

    def submit(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        def call() -> R:
            if self._stopped.is_set():
                raise InterruptedError("the grid was stopped before this run began")
            return function(*args, **kwargs)

        return super().submit(call)

    def stop(self) -> None:
        self._stopped.set()


def finished_rows(cells: Sequence[Cell], folder: Path) -> list[dict[str, Any]]:
    """The rows of the cells that have run already, with this folder."""
    keys = [cell_key(recipe) for _, recipe in cells]
    return [
        {**labels, **read_row(folder, key)}
        for (labels, _), key in zip(cells, keys, strict=True)
        if row_file(folder, key).exists()
    ]


def _place(row: dict[str, Any]) -> tuple:
    return tuple(row[name] for name in ("data", "backbone", "method", "rate", "trial", "seed"))


def show_chosen(rows: Sequence[dict[str, Any]], args: argparse.Namespace, *, written: bool = True) -> None:
    """Print the comparison of the chosen trials, then what their divisions are worth and what they cost."""
    title = f"best of {len(GRID)} trials each, {rows[0]['data']}, {rows[0]['backbone']}"
    show_table(equal_terms_table(rows, title), args, written=written)
    print(f"\n{division_table(rows, title=title).as_text()}")
    if args.figure is not None:
        by_rate = grouped(rows, "rate")
        for (rate,), of_rate in by_rate.items():
            for file in draw_cost(of_rate, Path(f"{args.figure}-{rate:g}") if len(by_rate) > 1 else args.figure):
                print(file)


def show_controls(rows: Sequence[dict[str, Any]], args: argparse.Namespace, *, written: bool = True) -> None:
    """Print a table of controls for each collection, backbone and noise protocol."""
    groups = grouped(rows, "data", "backbone", "protocol")
    if args.table and len(groups) > 1:
        raise UserError(f"--table takes one table, and these rows make {len(groups)}; leave it out")
    for (data, backbone, protocol), members in groups.items():
        title = f"controls, {data}, {backbone}, noise {protocol_label(protocol)}"
        show_table(equal_terms_table(members, title), args, written=written)


def _report(row: dict[str, Any]) -> None:
    trial = f" trial {row['trial']}" if "trial" in row else ""
    scores = f"val {row['val_rsum']:.1f}, test {row['test_rsum']:.1f}, {row['epochs']} epochs, {row['seconds']:.0f} s"
    print(f"{row['rate']:g} {row['method']}{trial} seed {row['seed']}: {scores}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(build_parser(), run, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
