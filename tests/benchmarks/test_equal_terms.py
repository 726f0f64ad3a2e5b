"""Equal terms: every method has the same trials, the best by validation is chosen, controls change what they say."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import equal_terms
from benchmarks.equal_terms import (
    CONTROLS,
    GRID,
    MAX_EPOCHS,
    PATIENCE,
    RCL_AFTER_INFONCE,
    SINGLE_NETWORK,
    Control,
    RCLAfterInfoNCE,
    build_parser,
    choose_controls,
    chosen_cells,
    chosen_rows,
    control_cells,
    equal_terms_table,
    main,
    register_controls,
    right_pairs_only,
    run_control,
    run_controls,
    trial_cells,
)
from sremkit.bench import grid
from sremkit.bench.grid import cell_key, read_csv, run_grid, write_csv
from sremkit.config.recipes import Recipe, load_recipe
from sremkit.data.batch import Batch
from sremkit.data.training_pairs import noise_for, read_split, read_training_pairs
from sremkit.errors import UnknownNameError, UserError
from sremkit.evaluation import retrieval_recall
from sremkit.experiment import prepare
from sremkit.methods import build_method
from sremkit.models.ensemble import logit_of_mean


def test_every_method_has_the_same_trials() -> None:
    cells = trial_cells("flickr8k", "dual", SINGLE_NETWORK, [0.4, 0.6])
    assert len({cell_key(recipe) for _, recipe in cells}) == len(cells) == 2 * len(SINGLE_NETWORK) * len(GRID)
    for labels, recipe in cells:
        training = recipe.training
        settings = (training.learning_rate, recipe.model["dropout"], training.ema_decay)
        assert settings == GRID[labels["trial"]]
        assert training.warmup_epochs + training.epochs == MAX_EPOCHS
        assert training.decay_after == training.epochs  # a constant rate
        assert training.patience == PATIENCE
        assert (recipe.noise.rate, recipe.noise.seed, training.seed) == (labels["rate"], 0, 0)
        shipped = load_recipe(f"flickr8k-dual-{labels['method']}")
        assert recipe.method == shipped.method
        assert training.warmup_epochs == shipped.training.warmup_epochs


def test_a_setting_of_the_command_is_one_of_every_run_and_leaves_the_grid(tmp_path: Path) -> None:
    given = ["training.batch_size=64", "training.learning_rate=9.0"]
    trials = trial_cells("flickr8k", "dual", ["rcl"], [0.6], given)
    seeds = chosen_cells([{**labels, "val_rsum": 1.0} for labels, _ in trials], [1], given)
    controls = control_cells("flickr8k", "dual", CONTROLS[:1], [0.6], [0], tmp_path, settings=given[:1])
    assert {recipe.training.batch_size for _, recipe in [*trials, *seeds, *controls]} == {64}
    assert [recipe.training.learning_rate for _, recipe in trials] == [point[0] for point in GRID]


def test_the_trial_with_the_best_validation_is_run_with_the_other_seeds() -> None:
    trials = [
        {**labels, "val_rsum": 200.0 + (trial == best), "test_rsum": 500.0 - 9 * (trial == best)}
        for (labels, _), trial, best in zip(
            trial_cells("flickr8k", "dual", ["rcl", "srem"], [0.6]), [0, 1, 2, 3] * 2, [2] * 4 + [1] * 4, strict=True
        )
    ]
    cells = chosen_cells(trials, [0, 1])
    assert [(c["method"], c["trial"], c["seed"]) for c, _ in cells] == [
        ("rcl", 2, 0), ("rcl", 2, 1), ("srem", 1, 0), ("srem", 1, 1)
    ]  # fmt: skip
    assert cells[1][1].model["dropout"] == GRID[2][1]
    assert cells[1][1].noise.seed == cells[1][1].training.seed == 1


def test_a_control_changes_what_it_says(tmp_path: Path) -> None:
    named = [control for control in CONTROLS if not control.right_only]
    cells = control_cells("flickr8k", "dual", named, [0.6], [1], tmp_path, protocol="absent")
    recipes = {labels["method"]: recipe for labels, recipe in cells}
    assert all(recipe.noise.protocol == "absent" and recipe.noise.seed == 1 for recipe in recipes.values())
    plain = recipes["srem-plus"]
    assert recipes["srem-plus-without-rematching"].method == {**plain.method, "rematch_top_k": 0}
    assert recipes["srem-plus-without-memory"].method == {**plain.method, "decay": 0.0}
    assert recipes["srem-plus-without-ema"].training.ema_decay == 0.0 < plain.training.ema_decay
    after = recipes["rcl-after-two-epochs-of-infonce"]
    assert after.training.warmup_epochs == 2
    assert after.method == {**recipes["rcl"].method, "name": "rcl-after-infonce"}


def test_rcl_after_infonce_is_each_in_its_turn() -> None:
    logits = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    batch = Batch(torch.arange(6), torch.arange(6))
    method = RCLAfterInfoNCE(similarity="logit", temperature=0.5)
    for warmup, other in ((True, build_method("infonce")),
                          (False, build_method("rcl", similarity="logit", temperature=0.5))):  # fmt: skip
        ours, theirs = (m.loss(lambda _: logits, batch, warmup=warmup).total for m in (method, other))
        assert ours == theirs


def test_right_pairs_only_are_those_that_the_noise_leaves(tmp_path: Path) -> None:
    recipe = load_recipe("scenes-infonce", [
        "data.train_options.num_scenes=12", "data.options.num_scenes=6", "noise.rate=0.5", "model.embed_size=8",
        "model.word_dim=8", "training.device=cpu",
    ])  # fmt: skip
    clean = read_training_pairs(recipe.data)
    right = ~noise_for(recipe.noise, clean).is_noisy
    ready = prepare(right_pairs_only(recipe, tmp_path / "lists"))
    assert list(ready.train.pair_ids) == [clean.pair_ids[k] for k in np.flatnonzero(right).tolist()]
    assert not ready.is_noisy.any()
    assert ready.recipe.training.patience == PATIENCE


def test_an_unknown_control_is_named(capsys) -> None:
    with pytest.raises(UnknownNameError, match="no control called 'rlc'"):
        choose_controls("rlc")
    assert choose_controls("all") == list(CONTROLS)
    assert [control.name for control in choose_controls("rcl,srem-plus")] == ["rcl", "srem-plus"]
    assert main(["--controls", "rlc"]) == 2
    assert "no control called 'rlc'" in capsys.readouterr().err
    assert build_parser().parse_args([]).noise == "0.6"


def test_controls_run_side_by_side_in_processes_that_learn_their_methods(tmp_path: Path) -> None:
    register_controls()
    recipe = load_recipe("scenes-rcl", [
        "data.train_options.num_scenes=12", "data.options.num_scenes=6", "model.embed_size=8", "model.word_dim=8",
        "training.epochs=1", "training.device=cpu",
    ])  # fmt: skip
    recipe = replace(recipe, method={**recipe.method, "name": RCL_AFTER_INFONCE})
    cells = [
        ({"seed": seed}, replace(recipe, training=replace(recipe.training, seed=seed, warmup_epochs=1)))
        for seed in range(2)
    ]
    rows = run_grid(cells, tmp_path, jobs=2, run=run_control)
    assert [row["seed"] for row in rows] == [0, 1]
    assert [row["epochs"] for row in rows] == [2, 2]


def test_two_networks_are_two_runs_on_the_same_noise_whose_scores_are_averaged(tmp_path: Path) -> None:
    tiny = ("data.train_options.num_scenes=12", "data.options.num_scenes=6", "model.embed_size=8", "model.word_dim=8",
            "training.epochs=1", "training.warmup_epochs=0", "training.device=cpu")  # fmt: skip
    controls = [Control("one", "rcl", tiny), Control("two", "rcl", tiny, networks=2)]
    backbone = load_recipe("scenes-rcl").model["name"]
    cells = control_cells("scenes", backbone, controls, [0.5], [3], tmp_path)
    assert [(recipe.noise.seed, recipe.training.seed) for _, recipe in cells] == [(3, 3), (3, 3), (3, 1003)]
    folder = tmp_path / "cells"
    one, two = run_controls(cells, folder, jobs=1)
    assert (one["method"], one["networks"]) == ("one", 1)
    assert (two["method"], two["networks"], two["seed"]) == ("two", 2, 3)
    first, second = (torch.from_numpy(np.load(folder / f"{key}.npy")) for key in two["members"].split("+"))
    pairs = read_split(cells[0][1].data, cells[0][1].data.test_split)
    assert two["test_rsum"] == retrieval_recall(logit_of_mean(first, second), pairs.image_of_text)["rsum"]
    assert not torch.equal(first, second)
    assert "two networks" in equal_terms_table([one, two], "controls").as_text()


def trial_row(method: str, seed: int, trial: int, val: float, test: float) -> dict[str, Any]:
    learning_rate, dropout, ema_decay = GRID[trial]
    place = {"data": "flickr8k", "backbone": "dual", "method": method, "rate": 0.6, "trial": trial, "seed": seed}
    setting = {"learning_rate": learning_rate, "dropout": dropout, "ema_decay": ema_decay}
    return {**place, **setting, "val_rsum": val, "test_rsum": test, "epochs": 10 + seed}


def test_rows_of_a_given_file_are_not_run_again(tmp_path: Path, monkeypatch, capsys) -> None:
    known, run = tmp_path / "known.csv", []
    write_csv([trial_row("rcl", 0, trial, [250.0, 260.0, 240.0, 230.0][trial], 255.0) for trial in range(3)], known)

    def run_grid(cells: list, *_: object, **__: object) -> list[dict[str, Any]]:
        run.extend((labels["trial"], labels["seed"]) for labels, _ in cells)
        return [{**labels, "val_rsum": 200.0, "test_rsum": 256.0, "epochs": 9} for labels, _ in cells]

    monkeypatch.setattr(equal_terms, "run_grid", run_grid)
    out = tmp_path / "out.csv"
    assert main(["--methods", "rcl", "--trials", str(known), "--seeds", "2", "-o", str(out)]) == 0
    assert run == [(3, 0), (1, 1)]
    assert [(row["trial"], row["seed"]) for row in read_csv(out)] == [(0, 0), (1, 0), (2, 0), (3, 0), (1, 1)]
    given = ["--methods", "rcl", "--trials", str(known), "--seeds", "2", "-o", str(out), "--set"]
    assert main([*given, "training.batch_size=64"]) == 2
    assert "leave out --set" in capsys.readouterr().err
    run.clear()
    assert main([*given, "training.compile=true"]) == 0  # the same trials, faster
    assert run == [(3, 0), (1, 1)]


class FakeRuns:
    """In the place of the processes that run cells: rows at once, or what `before` does with the recipe."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[Recipe], None] = lambda recipe: None) -> None:
        self.ran: list[tuple[str, int]] = []  # method and seed

        def run_in(context: Any, run: Any, recipe: Recipe, *_: Any) -> dict[str, Any]:
            before(recipe)
            self.ran.append((recipe.method["name"], recipe.training.seed))
            val = 200.0 + 10 * (recipe.training.learning_rate < 1e-3)  # the second trial is the best
            return {"val_rsum": val, "test_rsum": 256.0 + recipe.training.seed, "epochs": 9, "seconds": 1.0}

        monkeypatch.setattr(grid, "_run_in", run_in)


def command(out: Path, methods: str = "rcl,srem") -> list[str]:
    return ["--methods", methods, "--noise", "0.6", "--seeds", "3", "--jobs", "2", "-o", str(out)]


def places(out: Path) -> list[tuple[str, int, int]]:
    return [(row["method"], row["trial"], row["seed"]) for row in read_csv(out)]


TRIALS = [(method, trial, 0) for method in ("rcl", "srem") for trial in range(4)]
SEEDS = [(method, 1, seed) for method in ("rcl", "srem") for seed in (1, 2)]


def test_no_method_waits_for_the_trials_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, last_seed = tmp_path / "out.csv", threading.Event()

    def before(recipe: Recipe) -> None:
        if recipe.method["name"] == "rcl" and recipe.training.learning_rate < 1e-3 and recipe.training.seed == 0:
            assert last_seed.wait(30)  # a trial that ends when the other method is at its last seed
        if (recipe.method["name"], recipe.training.seed) == ("srem", 2):
            last_seed.set()

    FakeRuns(monkeypatch, before)
    assert main(command(out)) == 0
    assert places(out) == TRIALS + SEEDS


def test_a_failed_run_is_an_error_after_the_other_methods_have_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    out, broken = tmp_path / "out.csv", True

    def before(recipe: Recipe) -> None:
        if broken and recipe.method["name"] == "rcl" and recipe.model["dropout"] == 0.3:
            raise UserError("this run is broken")

    FakeRuns(monkeypatch, before)
    assert main(command(out)) == 2
    assert "this run is broken" in capsys.readouterr().err
    finished = [place for place in TRIALS + SEEDS if place != ("rcl", 2, 0) and place not in SEEDS[:2]]
    assert places(out) == finished
    broken = False
    runs = FakeRuns(monkeypatch, before)
    assert main(command(out)) == 0
    assert sorted(runs.ran) == [("rcl", 0), ("rcl", 1), ("rcl", 2)]
    assert places(out) == TRIALS + SEEDS


def test_a_stopped_grid_begins_no_further_run_and_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, running, ends = tmp_path / "out.csv", threading.Semaphore(0), threading.Event()

    def before(recipe: Recipe) -> None:
        running.release()
        assert ends.wait(30)

    def interrupted(futures: Any) -> None:
        for _ in range(2):
            assert running.acquire(timeout=30)
        threading.Timer(0.3, ends.set).start()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(equal_terms, "wait", interrupted)
        runs = FakeRuns(patch, before)
        with pytest.raises(KeyboardInterrupt):
            equal_terms.run(build_parser().parse_args(command(out)))
        assert len(runs.ran) == 2
        kept = places(out)
        assert len(kept) == 2
    # Stopped again before anything has finished: the file keeps what it has.
    with monkeypatch.context() as patch:
        patch.setattr(equal_terms, "run_grid", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            equal_terms.run(build_parser().parse_args(command(out)))
    assert places(out) == kept


def test_a_file_of_other_methods_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    out = tmp_path / "out.csv"
    FakeRuns(monkeypatch)
    assert main(command(out)) == 0
    before = out.read_text()
    assert main(command(out, "rcl,gsc")) == 2
    assert "holds 6 rows of other runs, such as srem at 0.6; name another file" in capsys.readouterr().err
    assert out.read_text() == before


def test_each_noise_rate_has_a_figure_of_its_own(tmp_path: Path) -> None:
    cost = {"networks": 1, "seconds_per_epoch": 1.0, "filter_seconds_per_epoch": 0.0, "device": "cpu"}
    rows = [
        trial_row(method, 0, 0, 250.0, 255.0) | cost | {"rate": r} for r in (0.4, 0.6) for method in ("infonce", "rcl")
    ]
    write_csv(rows, tmp_path / "rows.csv")
    assert main(["--from", str(tmp_path / "rows.csv"), "--figure", str(tmp_path / "cost")]) == 0
    assert {file.name for file in tmp_path.glob("*.png")} == {"cost-0.4.png", "cost-0.6.png"}


def test_the_table_compares_the_chosen_trials_paired_by_seed(tmp_path: Path, capsys) -> None:
    rows = [
        trial_row("rcl", 0, 0, 250.0, 299.0),  # better on test alone: not chosen
        trial_row("rcl", 0, 1, 260.0, 250.0),
        trial_row("rcl", 1, 1, 261.0, 252.0),
        trial_row("srem", 0, 3, 270.0, 260.0),
        trial_row("srem", 1, 3, 271.0, 262.2),
        {**trial_row("ncr", 0, 0, 280.0, 270.0), "networks": 2},
    ]
    chosen = chosen_rows(rows)
    assert [row["test_rsum"] for row in chosen] == [250.0, 252.0, 260.0, 262.2, 270.0]
    table = equal_terms_table(chosen, "t")
    (heading, (rcl, srem)), (two, (ncr,)) = table.sections
    assert (heading, two) == ("60% noise", "60% noise, two networks")
    # Differences of 10 and 10.2: mean 10.1, standard error 0.1, and t of one degree of freedom is 12.71.
    assert rcl == ["rcl", "2", "260.5 ± 0.7", "251.0 ± 1.4", "-10.1 (-11.4 to -8.8) srem", "-", "-", "-", "10, 11",
                   "0.0005, 0.5, 0.999"]  # fmt: skip
    assert srem[3:5] == ["**261.1 ± 1.6**", "+10.1 (+8.8 to +11.4) rcl"]
    assert ncr[1:5] == ["1", "280.0", "270.0", "-"]
    write_csv(rows, tmp_path / "rows.csv")
    assert main(["--from", str(tmp_path / "rows.csv")]) == 0
    assert "+10.1 (+8.8 to +11.4) rcl" in capsys.readouterr().out


def test_the_table_of_controls_has_neither_trials_nor_rivals() -> None:
    rows = [
        {"data": "flickr8k", "backbone": "dual", "method": "rcl", "rate": 0.6, "seed": seed, "val_rsum": 260.0 + seed,
         "test_rsum": 250.0, "epochs": 10 + seed}
        for seed in range(2)
    ]  # fmt: skip
    ((heading, (line,)),) = equal_terms_table(rows, "t").sections
    assert heading == "60% noise"
    assert line == ["rcl", "2", "260.5 ± 0.7", "250.0 ± 0.0", "-", "-", "-", "10, 11"]


def test_controls_of_a_file_have_a_table_for_each_protocol(tmp_path: Path, capsys) -> None:
    rows = [
        {"data": "flickr8k", "backbone": "dual", "method": method, "rate": 0.6, "seed": seed, "protocol": protocol,
         "val_rsum": 260.0, "test_rsum": 250.0 + seed, "epochs": 10}
        for protocol in ("absent", "image")
        for method in ("rcl", "srem-plus")
        for seed in range(2)
    ]  # fmt: skip
    file = tmp_path / "controls.csv"
    write_csv(rows, file)
    assert main(["--from", str(file)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("noise protocol absent") == shown.count("noise per image") == 1
    assert shown.count("250.5 ± 0.7") == 4
    assert main(["--from", str(file), "--table", str(tmp_path / "t.md")]) == 2
    assert "--table takes one table, and these rows make 2" in capsys.readouterr().err
