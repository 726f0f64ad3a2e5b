"""An adaptive warm-up: extended until the method is ready, undone if the epoch after it fails; and a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sremkit.config.recipes import TrainingSettings, load_recipe, recipe_from_table, recipe_to_toml
from sremkit.methods import WarmupStatus
from sremkit.training.diagnostics import StoppedError
from sremkit.training.run_folder import RunFolder
from sremkit.training.state import Position, Schedule
from sremkit.training.warmup import WarmupControl
from training import tiny
from training.test_resume import StopAfter, assert_same
from training.test_trainer import Listener

#: With these the tiny run is not ready after its planned warm-up, and is so some epochs later.
LONG = dict(
    adaptive_warmup=True,
    warmup_epochs=2,
    epochs=30,
    decay_after=1000,
    learning_rate=2e-2,
    checkpoint_minutes=1e9,
)


def long_trainer(folder: RunFolder, method: str, **changes: object):
    trainer = tiny.tiny_trainer(folder, method=method, **LONG, **changes)
    if method == "srem":
        trainer.method.monitor.min_weight = 0.45  # 96 pairs in batches of 16 hardly reach 2/3
    return trainer


def ready_after(first: int, listener: object = None, **changes: object):
    """A trainer whose method reports from that epoch on that it is ready."""
    # Without validation, which would warn of so short a run.
    settings = {"adaptive_warmup": True, "validate": None, "epochs": 8, **changes}
    trainer = tiny.tiny_trainer(reporter=listener, **settings)
    trainer.method.warmup_status = lambda: WarmupStatus(trainer.position.epoch >= first, message="accuracy 40 %")
    return trainer


def warmups(listener: Listener) -> list[bool]:
    return [row["warmup"] for row in listener.rows]


def test_it_is_extended_until_the_method_is_ready_and_the_run_keeps_its_length() -> None:
    listener = Listener()
    position = ready_after(4, listener).run()
    assert warmups(listener) == [True] * 4 + [False] * 6  # 2 + 8 epochs in all
    # decay_after = 3 epochs after the planned warm-up of 2
    assert [row["learning_rate"] for row in listener.rows] == pytest.approx([3e-3] * 5 + [3e-4] * 5)
    assert listener.rows[3]["ranking_i2t"] == 0.0
    assert listener.rows[4]["ranking_i2t"] > 0.0  # the steps too are no warm-up any more
    assert position.warmup_epochs == 4
    assert listener.sentences == [
        "the warm-up continues after 2 epochs: accuracy 40 %",
        "the warm-up ends after 4 epochs: accuracy 40 %",
    ]
    assert listener.warnings == []


def test_it_never_ends_before_the_planned_epochs() -> None:
    listener = Listener()
    ready_after(0, listener, warmup_epochs=3).run()
    assert warmups(listener) == [True] * 3 + [False] * 8


def test_it_ends_after_half_of_the_run_in_any_case() -> None:
    listener = Listener()
    ready_after(99, listener).run()
    assert warmups(listener) == [True] * 5 + [False] * 5


def test_without_the_setting_it_has_a_fixed_length_and_warns() -> None:
    listener = Listener()
    ready_after(99, listener, adaptive_warmup=False).run()
    assert warmups(listener) == [True] * 2 + [False] * 8
    [warning] = listener.warnings
    assert "ends after 2 epochs and may be too short: accuracy 40 %" in warning
    assert listener.sentences == []


def test_a_run_that_is_a_warm_up_only_neither_extends_nor_warns() -> None:
    listener = Listener()
    ready_after(99, listener, warmup_epochs=2, epochs=0).run()
    assert warmups(listener) == [True] * 2
    assert listener.warnings == listener.sentences == []


def test_a_method_that_does_not_monitor_it_has_a_fixed_length() -> None:
    listener = Listener()
    tiny.tiny_trainer(reporter=listener, method="infonce", adaptive_warmup=True, epochs=1, validate=None).run()
    assert warmups(listener) == [True, True, False]
    assert listener.warnings == listener.sentences == []


def test_the_setting_alone_changes_no_number_where_the_method_is_ready() -> None:
    fixed, adaptive = Listener(), Listener()
    for listener, setting in ((fixed, False), (adaptive, True)):
        ready_after(0, listener, adaptive_warmup=setting, epochs=2).run()
    for one, other in zip(fixed.rows, adaptive.rows, strict=True):
        timeless = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in (one, other)]
        assert timeless[0] == timeless[1]


def scripted(
    rsums: list[float], listener: Listener, folder: RunFolder | None = None, first: int = 0, **changes: object
):
    """A trainer with these validation results, whose method is ready from epoch `first` on."""
    results = iter(rsums)
    return ready_after(first, listener, folder=folder, validate=lambda model: {"rsum": next(results)}, **changes)


def test_a_fall_of_recall_restores_the_weights_and_continues_the_warm_up() -> None:
    listener = Listener()
    trainer = scripted([100, 200, 180, 200, 210, 220, 230, 240, 250, 260], listener)
    found = {}

    def watch(row: dict) -> None:
        found[row["epoch"]] = {name: t.clone() for name, t in trainer.matcher.state_dict().items()}
        Listener.epoch(listener, row)

    listener.epoch = watch
    restored = {}
    load = trainer.state.load_trained
    object.__setattr__(trainer.state, "load_trained", lambda tensors: (load(tensors), restored.update(tensors)))
    trainer.run()
    # Epoch 2 is the attempt: 180 is less than 95 % of 200. One epoch of warm-up follows, then the next attempt holds.
    assert warmups(listener) == [True, True, False, True, *[False] * 6]
    [warning] = listener.warnings
    assert "validation R_sum has fallen to 180.0 from 200.0" in warning
    assert "the weights of the end of the warm-up are restored" in warning.lower()
    for name, weight in found[1].items():
        assert torch.equal(restored[f"model/{name}"], weight)
        assert not torch.equal(found[2][name], weight)


def test_a_fall_of_less_than_five_percent_is_kept() -> None:
    listener = Listener()
    scripted([100, 200, 191, *[200] * 7], listener).run()
    assert warmups(listener) == [True] * 2 + [False] * 8
    assert listener.warnings == []


def test_an_attempt_lasts_until_the_method_is_ready() -> None:
    """A warm-up that ends without a ready method: the slow fall of the third epoch after it is undone."""
    listener = Listener()
    # Half of the run is over after epoch 4. The attempt begins with 200; 195 and 191 are kept, 150 is not.
    rsums = [100, 120, 140, 160, 200, 195, 191, 150, 200, 199]
    scripted(rsums, listener, first=99).run()
    assert warmups(listener) == [True] * 5 + [False] * 3 + [True, False]
    assert "validation R_sum has fallen to 150.0 from 200.0" in listener.warnings[0]
    listener = Listener()
    scripted(rsums, listener, first=6).run()
    assert warmups(listener) == [True] * 5 + [False] * 5  # ready after the first epoch of the attempt, which ends it


def test_an_attempt_that_goes_on_warns_of_a_collapse_and_one_that_is_undone_costs_no_patience() -> None:
    listener = Listener()
    scripted([200, 100, 100, 100, 60, *[59] * 5], listener, first=99).run()  # ends at 60, never ready, stays there
    assert warmups(listener) == [True] * 5 + [False] * 5
    assert sum("fallen to 59.0 from 200.0" in warning for warning in listener.warnings) > 0
    listener = Listener()
    rsums = [100, 120, 140, 160, 180, 200, 199, 198, 197, 150, *[200 - k for k in range(8)]]
    scripted(rsums, listener, first=99, epochs=10, patience=5).run()
    assert warmups(listener) == [True] * 6 + [False] * 4 + [True, False]  # 12 epochs: none is left out


def test_whether_an_epoch_ends_ready_is_decided_by_all_of_its_batches() -> None:
    from sremkit.methods import build_method
    from sremkit.objectives import SREM

    cold, warm = SREM()(0.5 * torch.eye(8) - 0.1), SREM()(20.0 * torch.eye(8) - 10)
    method = build_method("srem")
    method.begin_epoch(0, warmup=True)
    for terms in (cold, cold, cold, warm):
        method.monitor.update(terms)
        assert method.collapse_message() == ""  # a check within the epoch reads the sums
    assert method.monitor.is_ready()  # as of the last batch alone
    method.finish_epoch()
    assert not method.warmup_status().is_ready
    assert method.monitor.mean_weight == pytest.approx(0.25, abs=0.01)


def test_srem_is_monitored_after_its_warm_up_until_an_epoch_ends_ready() -> None:
    from sremkit.methods import build_method
    from sremkit.objectives import SREM

    cold, warm = SREM()(0.5 * torch.eye(8) - 0.1), SREM()(20.0 * torch.eye(8) - 10)
    method = build_method("srem")
    monitored = []
    for epoch, terms in enumerate((cold, cold, cold, warm, warm)):
        method.begin_epoch(epoch, warmup=epoch == 0)
        monitored.append(method._is_monitored)
        if monitored[-1]:
            method.monitor.update(terms)
        method.finish_epoch()
    assert monitored == [True, True, True, True, False]


def test_three_failed_attempts_leave_the_rest_to_the_warm_up() -> None:
    listener = Listener()
    # Attempts are epochs 2, 4 and 7: one and then two epochs of warm-up lie between them.
    rsums = [100, 200, 10, 200, 10, 200, 200, 10, 200, 200, 200]
    position = scripted(rsums, listener, epochs=9).run()
    assert warmups(listener) == [True, True, False, True, False, True, True, False, True, True, True]
    assert len(listener.warnings) == 3
    assert listener.warnings[-1].endswith("continues for the rest of the run")
    assert position.failed_attempts == 3


class CollapsesOnce:
    """Reports a collapse at the first check of the first attempt."""

    def __init__(self) -> None:
        self.checks = 0

    def __call__(self) -> str:
        self.checks += 1
        return "0.0% of the pairs are selected, after 50.0% before" if self.checks == 1 else ""


def test_a_collapse_is_noticed_within_the_epoch_and_the_rest_of_it_is_warm_up(monkeypatch) -> None:
    monkeypatch.setattr("sremkit.training.warmup.MIN_STEPS", 2)
    listener = Listener()
    trainer = ready_after(0, listener)
    trainer.method.collapse_message = CollapsesOnce()
    stages: list[tuple[int, bool]] = []
    loss = trainer.method.loss

    def watched(forward, batch, *, warmup: bool):
        stages.append((trainer.position.epoch, warmup))
        return loss(forward, batch, warmup=warmup)

    trainer.method.loss = watched
    trainer.run()
    # 6 steps an epoch; the check after the second one of epoch 2 returns to the warm-up, for that epoch and the next.
    assert [warmup for epoch, warmup in stages if epoch == 2] == [False] * 2 + [True] * 4
    assert warmups(listener) == [True] * 4 + [False] * 6
    [warning] = listener.warnings
    assert "0.0% of the pairs are selected, after 50.0% before" in warning
    assert trainer.method.collapse_message.checks == 1 + 3  # and three in the epoch of the second attempt


def test_srem_reports_a_lost_selection() -> None:
    from sremkit.methods import build_method
    from sremkit.objectives import SREM

    method = build_method("srem")
    method.begin_epoch(0, warmup=True)
    method.monitor.update(SREM()(20.0 * torch.eye(8) - 10))
    method.finish_epoch()
    assert method.warmup_status().is_ready
    method.begin_epoch(1, warmup=False)
    method.monitor.update(SREM()(20.0 * torch.eye(8) - 10))
    assert method.collapse_message() == ""
    method.monitor.update(SREM()(torch.zeros(8, 8)))
    assert method.collapse_message() == "0.0% of the pairs are selected, after 100.0% before"
    assert build_method("srem", weighting=False).warmup_status().is_ready  # an ablation has no weights to wait for


def test_checks_are_twenty_an_epoch_and_ten_steps_apart_at_least() -> None:
    settings = TrainingSettings(adaptive_warmup=True)
    control = WarmupControl(settings, Schedule(settings), method=None)  # type: ignore[arg-type]
    assert not control.is_check_due(50, 1000)  # no attempt
    control.checkpoint = {}
    assert [step for step in range(1, 1001) if control.is_check_due(step, 1000)][:2] == [50, 100]
    assert [step for step in range(1, 31) if control.is_check_due(step, 30)] == [10, 20, 30]


@pytest.fixture(scope="module", params=["srem", "srem-plus"])
def uninterrupted(request, tmp_path_factory) -> tuple[str, RunFolder]:
    folder = RunFolder.create(tmp_path_factory.mktemp("whole") / "run", config="")
    long_trainer(folder, request.param).run()
    return request.param, folder


def warmup_of(folder: RunFolder) -> int:
    return sum(row["warmup"] for row in folder.read_metrics())


def test_the_methods_own_rule_extends_the_tiny_warm_up(uninterrupted) -> None:
    """Else what follows would show nothing."""
    _, folder = uninterrupted
    assert 2 < warmup_of(folder) < 16
    assert len(folder.read_metrics()) == 32


# Steps before (negative) or after the end of the warm-up; 6 batches an epoch.
@pytest.mark.parametrize("steps", [-6, -3, 0, 4, 6])
def test_stopped_around_the_end_of_its_warm_up_and_resumed_it_is_the_same(
    uninterrupted, tmp_path: Path, steps: int
) -> None:
    method, whole = uninterrupted
    folder = RunFolder.create(tmp_path / "run", config="")
    stop = StopAfter(6 * warmup_of(whole) + steps)
    with pytest.raises(StoppedError):
        long_trainer(folder, method, reporter=stop).run()
    torch.manual_seed(12345)  # whatever happened in between
    long_trainer(folder, method).run()
    assert_same(whole, folder)


def test_a_run_that_was_stopped_in_an_attempt_returns_to_the_same_weights(tmp_path: Path) -> None:
    rsums = [100, 200, 10, 200, *[210] * 6]
    whole, stopped = (RunFolder.create(tmp_path / name, config="") for name in ("whole", "stopped"))
    scripted(rsums, Listener(), whole).run()
    with pytest.raises(StoppedError):
        scripted(rsums, StopAfter(15), stopped, checkpoint_minutes=1e9).run()  # in the third epoch, the attempt
    scripted(rsums[2:], Listener(), stopped, checkpoint_minutes=1e9).run()
    assert_same(whole, stopped)


def test_a_checkpoint_from_before_there_was_the_setting_goes_on(tmp_path: Path) -> None:
    whole, old = (RunFolder.create(tmp_path / name, config="") for name in ("whole", "old"))
    tiny.tiny_trainer(whole).run()
    with pytest.raises(StoppedError):
        tiny.tiny_trainer(old, reporter=StopAfter(15), checkpoint_minutes=1e9).run()
    for file in old.checkpoints.glob("step-*/facts.json"):
        facts = json.loads(file.read_text(encoding="utf-8"))
        for name in ("warmup_epochs", "warmup_rsum", "failed_attempts"):
            assert not facts["position"].pop(name)
        del facts["checksums"]  # newer than the setting
        file.write_text(json.dumps(facts), encoding="utf-8")
    tiny.tiny_trainer(old).run()
    assert_same(whole, old)


def test_the_schedule_by_hand() -> None:
    settings = TrainingSettings(warmup_epochs=3, epochs=4, decay_after=2, learning_rate=1.0, decay_factor=0.5)
    schedule = Schedule(settings)
    assert schedule.epochs() == 7
    planned = [Position(epoch=epoch) for epoch in range(8)]
    assert [schedule.is_warmup(position) for position in planned] == [True] * 3 + [False] * 5
    extended = [Position(epoch=epoch, warmup_epochs=5) for epoch in range(8)]
    assert [schedule.is_warmup(position) for position in extended] == [True] * 5 + [False] * 3
    for positions in (planned, extended):
        assert [schedule.is_over(position) for position in positions] == [False] * 7 + [True]
        assert [schedule.learning_rate(position) for position in positions] == [1.0] * 5 + [0.5] * 3


def test_a_recipe_keeps_the_setting_so_that_a_resumed_run_has_it(tmp_path: Path) -> None:
    recipe = load_recipe("scenes-srem", ["training.adaptive_warmup=false"])
    (tmp_path / "config.toml").write_text(recipe_to_toml(recipe), encoding="utf-8")
    assert not load_recipe(tmp_path / "config.toml").training.adaptive_warmup
    table = {"name": "x", "data": {"source": "scenes"}, "model": {"name": "dual"}, "method": {"name": "srem"}}
    assert recipe_from_table(table).training.adaptive_warmup
