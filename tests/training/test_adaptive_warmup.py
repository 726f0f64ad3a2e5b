"""A warm-up that ends when the method says that it suffices: the count, the rate, the words, and a resume."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from sremkit.recipes import TrainingSettings, load_recipe, recipe_from_table, recipe_to_toml
from sremkit.training.progress import Silent, TrainingProgress
from sremkit.training.run_folder import RunFolder
from sremkit.training.schedule import Position, Schedule
from sremkit.training.tensorboard import TensorBoardWriter
from sremkit.training.trouble import StoppedError
from training import tiny
from training.test_loop import Listener
from training.test_resume import StopAfter, assert_same

#: With these the tiny run's own warm-up ends after some epochs, fewer than the most.
LONG = dict(
    adaptive_warmup=True,
    warmup_epochs=40,
    epochs=3,
    decay_after=1,
    learning_rate=1e-2,
    checkpoint_minutes=1e9,
)


def told_after(enough_after: int, listener: object = None, **changes: object):
    """A trainer whose method says "enough" from that epoch on."""
    # Without validation, which would warn of so short a run.
    settings = {"adaptive_warmup": True, "validate": None, **changes}
    trainer = tiny.tiny_trainer(reporter=listener, **settings)
    trainer.method.warmed_up = lambda: trainer.position.epoch >= enough_after
    trainer.method.warmth = lambda: "it is warm"
    return trainer


def test_it_ends_after_the_first_epoch_that_suffices_and_the_others_count_from_there() -> None:
    listener = Listener()
    position = told_after(3, listener, warmup_epochs=9).run()
    assert [row["warmup"] for row in listener.rows] == [True] * 3 + [False] * 6
    # decay_after = 3 epochs after the warm-up's real end, which came after 3
    assert [row["learning_rate"] for row in listener.rows] == pytest.approx([3e-3] * 6 + [3e-4] * 3)
    assert listener.rows[2]["ranking_i2t"] == 0.0
    assert listener.rows[3]["ranking_i2t"] > 0.0  # the steps too are no warm-up any more
    assert (position.epoch, position.warmup_epochs) == (9, 3)


def test_its_end_is_said_in_one_line_and_the_length_of_the_run_is_told_anew() -> None:
    listener = Listener()
    told_after(3, listener, warmup_epochs=9).run()
    assert listener.sentences == ["warm-up enough after 3 epochs: it is warm"]
    assert listener.expected == [(15, True), (9, False)]  # 9 + 6 at most, 3 + 6 in the end
    assert listener.warnings == []


def test_enough_at_the_very_last_moment_is_enough() -> None:
    listener = Listener()
    told_after(4, listener, warmup_epochs=4, epochs=1).run()
    assert listener.sentences == ["warm-up enough after 4 epochs: it is warm"]
    assert listener.warnings == []


def test_the_most_epochs_end_it_with_a_warning_that_says_what_to_do() -> None:
    listener = Listener()
    position = told_after(99, listener, warmup_epochs=4, epochs=2).run()
    assert [row["warmup"] for row in listener.rows] == [True] * 4 + [False] * 2
    assert position.warmup_epochs is None
    assert listener.sentences == []
    assert listener.warnings == [
        "the warm-up has made all its 4 epochs and may be too short: it is warm. Raise training.warmup_epochs, "
        "or training.learning_rate if that hardly grows"
    ]
    assert listener.expected == [(6, True), (6, False)]


def test_a_method_that_cannot_tell_makes_all_epochs_and_says_so() -> None:
    listener = Listener()
    settings = dict(adaptive_warmup=True, epochs=1, validate=None)
    tiny.tiny_trainer(reporter=listener, method="infonce", **settings).run()
    assert [row["warmup"] for row in listener.rows] == [True, True, False]
    assert len(listener.warnings) == 1
    assert "this one cannot tell: it has made all 2 epochs" in listener.warnings[0]


def test_a_method_is_asked_after_each_epoch_of_the_warm_up_and_never_else() -> None:
    asked: list[int] = []
    for adaptive in (True, False):
        trainer = tiny.tiny_trainer(adaptive_warmup=adaptive, warmup_epochs=3, epochs=2)
        trainer.method.warmed_up = lambda made=trainer: asked.append(made.position.epoch) or False
        trainer.run()
    assert asked == [1, 2, 3]  # epochs made; nothing was asked of the run with a fixed warm-up


def test_without_the_setting_a_warm_up_is_as_long_as_it_says_and_nothing_is_told() -> None:
    listener = Listener()
    told_after(1, listener, adaptive_warmup=False).run()
    assert [row["warmup"] for row in listener.rows] == [True] * 2 + [False] * 6
    assert listener.sentences == listener.expected == []


def test_the_setting_alone_changes_no_number_before_the_end_of_the_warm_up() -> None:
    fixed, adaptive = Listener(), Listener()
    tiny.tiny_trainer(reporter=fixed, epochs=1, validate=None).run()
    told_after(2, adaptive, warmup_epochs=7, epochs=1).run()
    for one, other in zip(fixed.rows, adaptive.rows, strict=True):
        timeless = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in (one, other)]
        assert timeless[0] == timeless[1]


@pytest.fixture(scope="module", params=["srem", "srem-plus"])
def uninterrupted(request, tmp_path_factory) -> tuple[str, RunFolder]:
    folder = RunFolder.create(tmp_path_factory.mktemp("whole") / "run", config="")
    tiny.tiny_trainer(folder, method=request.param, **LONG).run()
    return request.param, folder


def warmup_of(folder: RunFolder) -> int:
    return sum(row["warmup"] for row in folder.read_metrics())


def test_the_methods_own_rule_ends_the_tiny_warm_up_before_its_most(uninterrupted) -> None:
    """Else what follows would say nothing."""
    _, folder = uninterrupted
    assert 3 < warmup_of(folder) < 40
    assert len(folder.read_metrics()) == warmup_of(folder) + 3


# Steps before (negative) or after the end of the warm-up; 6 batches an epoch.
@pytest.mark.parametrize("steps", [-20, -6, -3, 0, 4])
def test_stopped_around_the_end_of_its_warm_up_and_resumed_it_is_the_same(
    uninterrupted, tmp_path: Path, steps: int
) -> None:
    method, whole = uninterrupted
    folder = RunFolder.create(tmp_path / "run", config="")
    stop = StopAfter(6 * warmup_of(whole) + steps)
    with pytest.raises(StoppedError):
        tiny.tiny_trainer(folder, method=method, reporter=stop, **LONG).run()
    torch.manual_seed(12345)  # whatever happened in between
    listener = Listener()
    tiny.tiny_trainer(folder, method=method, reporter=listener, **LONG).run()
    assert_same(whole, folder)
    assert listener.expected[-1] == (warmup_of(whole) + 3, False)
    assert len(listener.sentences) == (steps <= 0)  # said once, by whoever made the last epoch of it


def test_a_checkpoint_from_before_there_was_the_setting_goes_on(tmp_path: Path) -> None:
    whole, old = (RunFolder.create(tmp_path / name, config="") for name in ("whole", "old"))
    tiny.tiny_trainer(whole).run()
    with pytest.raises(StoppedError):
        tiny.tiny_trainer(old, reporter=StopAfter(15), checkpoint_minutes=1e9).run()
    for file in old.checkpoints.glob("step-*/facts.json"):
        facts = json.loads(file.read_text(encoding="utf-8"))
        assert facts["position"].pop("warmup_epochs") is None
        file.write_text(json.dumps(facts), encoding="utf-8")
    tiny.tiny_trainer(old).run()
    assert_same(whole, old)


def test_the_schedule_by_hand() -> None:
    settings = TrainingSettings(
        warmup_epochs=10, epochs=4, decay_after=2, learning_rate=1.0, decay_factor=0.5, adaptive_warmup=True
    )
    schedule = Schedule(settings)
    assert schedule.epochs(Position(epoch=2)) == 14
    assert schedule.is_warmup(Position(epoch=9))
    assert not schedule.is_warmup(Position(epoch=10))
    ended = [Position(epoch=epoch, warmup_epochs=3) for epoch in range(8)]
    assert [schedule.is_warmup(position) for position in ended] == [True] * 3 + [False] * 5
    assert [schedule.is_over(position) for position in ended] == [False] * 7 + [True]  # 3 + 4 epochs
    assert [schedule.learning_rate(position) for position in ended] == [1.0] * 5 + [0.5] * 3


def test_the_console_shows_an_open_end_as_one_and_then_the_real_one() -> None:
    written = io.StringIO()
    console = Console(file=written, highlight=False, width=200)
    with TrainingProgress(15, title="tiny", console=console) as progress:
        told_after(2, progress, warmup_epochs=9, epochs=1).run()
    lines = written.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "tiny epoch 1/10 at most",
        "tiny epoch 2/10 at most",
        "warm-up enough after 2 epochs: it is warm",
        "tiny epoch 3/3",
    ]
    assert "at most" in lines[0].rsplit("  ", 1)[1]
    assert "left" not in lines[3]


def test_other_reporters_take_the_news(tmp_path: Path) -> None:
    history: list[dict] = []
    told_after(2, Silent(history), warmup_epochs=9, epochs=1).run()
    assert len(history) == 3
    writer = TensorBoardWriter(tmp_path)
    told_after(2, writer, warmup_epochs=9, epochs=1).run()
    writer.close()
    [events] = tmp_path.iterdir()
    assert b"warm-up enough after 2 epochs" in events.read_bytes()


def test_a_recipe_keeps_the_setting_so_that_a_resumed_run_has_it(tmp_path: Path) -> None:
    recipe = load_recipe("scenes-srem", ["training.adaptive_warmup=true"])
    (tmp_path / "config.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "config.toml").training.adaptive_warmup
    table = {"name": "x", "data": {"source": "scenes"}, "model": {"name": "dual"}, "method": {"name": "srem"}}
    assert not recipe_from_table(table).training.adaptive_warmup
