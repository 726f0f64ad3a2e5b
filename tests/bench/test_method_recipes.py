"""The recipe of each cell: own, adapted and then named in the table, with the epochs that were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.nn.functional as F

from small_recipes import AS_OPTIONS, TINY
from sremkit.bench.methods import default_backbone, method_cells, method_recipe, methods_table
from sremkit.cli.main import main
from sremkit.config.recipes import load_recipe
from sremkit.errors import UserError
from sremkit.methods import METHODS, Method
from sremkit.objectives import Loss


class Plugin(Method):
    """A method of another package."""

    def loss(self, matcher, batch, *, warmup):
        logits = matcher(batch)
        target = batch.pair_id.new_tensor(range(len(logits)))
        return Loss(F.cross_entropy(logits, target), {})


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> str:
    assert "plugin" not in METHODS
    monkeypatch.setitem(METHODS._entries, "plugin", Plugin)
    return "plugin"


@pytest.mark.parametrize(
    ("data", "backbone", "method", "base", "adapted"),
    [
        ("flickr8k", "dual", "rcl", "flickr8k-dual-rcl", False),
        ("scenes", "vse-infty", "rcl", "scenes-rcl", False),
        ("f30k", "sgr", "rcl", "f30k-sgr-srem", True),
        ("flickr8k", "saf", "ncr", "flickr8k-saf-srem", True),
        ("scenes", "scan-t2i", "rcl", "scenes-rcl", True),
    ],
)
def test_the_recipe_of_a_cell_is_the_one_that_fits_best(
    data: str, backbone: str, method: str, base: str, adapted: bool
) -> None:
    found = method_recipe(data, backbone, method, [])
    assert (found.base, found.adapted) == (base, adapted)
    assert (found.recipe.model["name"], found.recipe.method["name"]) == (backbone, method)
    assert found.recipe.training == load_recipe(base).training


def test_another_backbone_takes_the_model_options_that_it_has() -> None:
    # scenes-srem has vse-infty with embed_size = 128 and word_dim = 64; the dual encoder has no words.
    assert method_recipe("scenes", "scan-t2i", "srem", []).recipe.model == {
        "name": "scan-t2i",
        "embed_size": 128,
        "word_dim": 64,
    }
    assert method_recipe("scenes", "dual", "srem", []).recipe.model == {"name": "dual", "embed_size": 128}


@pytest.mark.parametrize("total", [1, 2, 3, 9, 20])
@pytest.mark.parametrize("data", ["scenes", "flickr8k"])
def test_every_method_trains_for_the_epochs_that_were_asked_for(data: str, total: int) -> None:
    backbone = default_backbone(data)
    for method in METHODS:
        own = method_recipe(data, backbone, method, []).recipe.training
        training = method_recipe(data, backbone, method, [f"training.epochs={total}"]).recipe.training
        assert training.warmup_epochs + training.epochs == total
        assert (training.warmup_epochs > 0) == (own.warmup_epochs > 0)
        assert (training.epochs > 0) == (total > 1 or own.warmup_epochs == 0)
        if own.decay_after >= own.epochs:
            assert training.decay_after >= training.epochs  # no decay remains none


def test_a_recipe_asked_for_its_own_length_is_itself() -> None:
    own = load_recipe("scenes-srem")  # 3 + 6 epochs, decay after 4
    assert method_recipe("scenes", "vse-infty", "srem", ["training.epochs=9"]).recipe.training == own.training
    doubled = method_recipe("scenes", "vse-infty", "srem", ["training.epochs=18"]).recipe.training
    assert (doubled.warmup_epochs, doubled.epochs, doubled.decay_after) == (6, 12, 8)


def test_a_given_warm_up_or_decay_is_not_scaled() -> None:
    both = ["training.epochs=4", "training.warmup_epochs=2"]
    training = method_recipe("scenes", "vse-infty", "srem", both).recipe.training
    assert (training.warmup_epochs, training.epochs, training.decay_after) == (2, 4, 4)
    decay = ["training.epochs=9", "training.decay_after=1"]
    assert method_recipe("scenes", "vse-infty", "srem", decay).recipe.training.decay_after == 1


def test_no_epochs_at_all_are_refused() -> None:
    with pytest.raises(UserError, match="nothing would be trained"):
        method_recipe("scenes", "vse-infty", "infonce", ["training.epochs=0"])


def test_a_registered_method_of_another_package_is_compared_and_marked(
    plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "grid.csv"
    command = ["bench", "methods", "--data", "scenes", "--methods", f"srem,{plugin}", "--noise", "0.4"]
    assert main([*command, "--seeds", "1", "-o", str(out), *AS_OPTIONS]) == 0
    printed = capsys.readouterr().out
    assert "plugin *" in printed
    assert "srem *" not in printed
    note = "* No recipe of its own (vse-infty plugin): data, schedule and batch size are those of scenes-srem"
    assert note in printed
    assert "scenes-srem,True" in out.read_text()


def test_without_names_every_registered_method_is_compared(
    plugin: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    compared: list[str] = []

    def run(cells: list, out: Path, **_: object) -> list[dict]:
        compared.extend(labels["method"] for labels, _ in cells)
        return [{**labels, "test_rsum": 1.0} for labels, _ in cells]

    monkeypatch.setattr("sremkit.bench.methods.run_methods", run)
    command = ["bench", "methods", "--data", "scenes", "--noise", "0.4", "--seeds", "1"]
    assert main([*command, "-o", str(tmp_path / "g.csv")]) == 0
    assert compared == list(METHODS)
    assert plugin in compared
    monkeypatch.setattr("sremkit.cli.bench.MANY", len(compared) - 1)
    capsys.readouterr()
    assert main([*command, "-o", str(tmp_path / "g.csv")]) == 0
    assert capsys.readouterr().out.startswith(f"{len(list(METHODS))} runs; --methods, --noise and --seeds")


def test_the_table_states_the_epochs_of_each_method() -> None:
    cells = method_cells("scenes", ["vse-infty"], ["infonce", "srem"], [0.4], [0], overrides=TINY)
    counts = [{"epochs": 9, "warmup_epochs": 0}, {"epochs": 8, "warmup_epochs": 3}]
    rows = [{**labels, "test_rsum": 1.0, **count} for (labels, _), count in zip(cells, counts, strict=True)]
    table = methods_table(rows, title="t")
    assert [line[4] for line in table.sections[0][1]] == ["9", "3+5"]
    assert table.notes == ["Epochs, warm-up + rest, are those of each recipe: 8 to 9."]
