"""The loop: schedule, best model, what it leaves behind, and how it tells trouble."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from sremkit.data.batch import Batch
from sremkit.data.features import ArrayFeatures
from sremkit.errors import UserError
from sremkit.models import build_matcher
from sremkit.training import checkpoint
from sremkit.training import trainer as loop
from sremkit.training.diagnostics import DivergedError, collapse_warnings
from sremkit.training.reporters import Reporter
from sremkit.training.run_folder import RunFolder
from sremkit.training.state import Position
from sremkit.training.step import GradCacheForward, StepResult
from training import tiny


class Listener(Reporter):
    def __init__(self) -> None:
        self.rows: list[dict] = []
        self.warnings: list[str] = []
        self.sentences: list[str] = []
        self.steps: list[tuple[int, int, int]] = []

    def step(self, epoch: int, step: int, steps: int, means: dict) -> None:
        self.steps.append((epoch, step, steps))

    def epoch(self, row: dict) -> None:
        self.rows.append(row)

    def warn(self, sentence: str) -> None:
        self.warnings.append(sentence)

    def info(self, sentence: str) -> None:
        self.sentences.append(sentence)


def test_warm_up_then_training_then_decay() -> None:
    listener = Listener()
    tiny.tiny_trainer(reporter=listener).run()
    assert [row["warmup"] for row in listener.rows] == [True, True, *[False] * 6]
    # decay_after = 3 epochs after the warm-up of 2
    rates = [row["learning_rate"] for row in listener.rows]
    assert rates == pytest.approx([3e-3] * 5 + [3e-4] * 3)
    assert listener.rows[0]["ranking_i2t"] == 0.0  # the warm-up is complementary learning alone
    assert listener.rows[-1]["ranking_i2t"] > 0.0
    assert 0.0 < listener.rows[-1]["weight_i2t"] <= 1.0
    assert listener.steps[:7] == [(0, 1, 6), (0, 2, 6), (0, 3, 6), (0, 4, 6), (0, 5, 6), (0, 6, 6), (1, 1, 6)]


def test_it_learns_and_watches_what_it_learns_from() -> None:
    listener = Listener()
    tiny.tiny_trainer(reporter=listener, epochs=30, decay_after=30, learning_rate=1e-2).run()
    assert listener.rows[-1]["val/rsum"] > 2 * listener.rows[0]["val/chance_rsum"]
    assert listener.rows[-1]["loss"] < listener.rows[2]["loss"]
    assert 0 <= listener.rows[-1]["noisy_gradient_ratio"] < 0.3
    assert 0 <= listener.rows[-1]["selected_wrong"] < 0.3


def test_the_best_epoch_is_kept_and_can_be_built_again(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    scores = iter([1.0, 5.0, 3.0, 2.0, 4.0, 4.5, 4.9, 0.1])
    trainer = tiny.tiny_trainer(folder, validate=lambda _: {"rsum": next(scores)})
    weights_at_best: dict[str, torch.Tensor] = {}
    keep = trainer._keep_if_best

    def spy(score: float, row: dict) -> None:
        if score == 5.0:
            weights_at_best.update({k: v.clone() for k, v in trainer.matcher.state_dict().items()})
        keep(score, row)

    trainer._keep_if_best = spy
    trainer.run()
    tensors, facts = folder.best()
    matcher = build_matcher(facts["model"]["name"], **facts["model"]["options"])
    matcher.load_state_dict(checkpoint.without_prefix("model", tensors))
    assert facts["metrics"]["epoch"] == 1
    for name, weight in matcher.state_dict().items():
        assert torch.equal(weight, weights_at_best[name])


def test_patience_ends_a_run_that_gets_no_better() -> None:
    scores = iter([1.0, 5.0, 3.0, 2.0, 4.0, 4.5, 4.9, 0.1])
    trainer = tiny.tiny_trainer(patience=1, validate=lambda _: {"rsum": next(scores)})
    assert trainer.run().epoch == 3  # after the warm-up of two, one epoch without gain


@pytest.mark.parametrize(
    ("scores", "patience", "epochs"),
    [
        ([5.0] * 11, 2, 5 + 2),  # the same result ever: not in the warm-up, and two epochs after it
        ([9.0, *[5.0] * 10], 2, 5 + 2),  # the warm-up's own epochs without gain do not count
        ([5.0] * 6 + [6.0] + [5.0] * 4, 2, 5 + 4),  # a gain in the second epoch: counted anew
        ([5.0, 4.0, 4.0, 4.0, 4.0, 6.0, 5.0, 5.0, 7.0, 5.0, 5.0], 3, 5 + 6),  # never three in a row
    ],
)
def test_patience_begins_after_the_warm_up(scores: list[float], patience: int, epochs: int) -> None:
    given = iter(scores)
    trainer = tiny.tiny_trainer(patience=patience, warmup_epochs=5, epochs=6, validate=lambda _: {"rsum": next(given)})
    assert trainer.run().epoch == epochs


def test_patience_begins_where_a_warm_up_came_to_its_end() -> None:
    trainer = tiny.tiny_trainer(patience=2, warmup_epochs=5)
    waiting = Position(epoch=3, epochs_without_gain=2)
    assert not trainer.schedule.is_over(waiting)
    waiting.warmup_epochs = 3
    assert trainer.schedule.is_over(waiting)


@pytest.mark.parametrize(("device", "seconds"), [("cuda", 5.0 + 2.0), ("cpu", 5.0)])
def test_the_time_before_training_ends_when_the_device_has_finished(
    monkeypatch: pytest.MonkeyPatch, device: str, seconds: float
) -> None:
    """A method that launches for five seconds, on a device that needs two more whenever it is waited for."""
    now = [10.0]

    def passes(seconds: float) -> None:
        now[0] += seconds

    trainer = tiny.tiny_trainer()
    trainer.device = torch.device(device)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: passes(2.0))
    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(trainer.method, "begin_epoch", lambda epoch, *, warmup: passes(5.0))
    trainer._begin_epoch(0)
    assert trainer.position.filter_seconds == seconds


def test_statistics_of_the_last_epochs_are_written_with_the_users_ids(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    tiny.tiny_trainer(folder, keep_statistics=2).run()
    files = sorted(folder.statistics.iterdir())
    assert [file.name for file in files] == ["epoch-006.parquet", "epoch-007.parquet"]
    table = pyarrow.parquet.read_table(files[-1])
    assert table.column_names == [
        "pair_id", "energy_i2t", "energy_t2i", "clean_i2t", "clean_t2i", "weight_i2t", "weight_t2i",
    ]  # fmt: skip
    assert table["pair_id"].to_pylist() == [f"pair-{k:03d}" for k in range(96)]
    assert table["clean_i2t"].type == pyarrow.bool_()
    assert table["energy_i2t"].null_count == 0


def test_methods_without_statistics_write_none(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    listener = Listener()
    tiny.tiny_trainer(folder, method="infonce", reporter=listener, epochs=1).run()
    assert not folder.statistics.exists()
    assert "selected_i2t" not in listener.rows[0]
    assert "noisy_gradient_ratio" not in listener.rows[0]


def test_a_nan_loss_stops_with_step_pairs_and_remedy(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    trainer = tiny.tiny_trainer(folder, method="infonce")
    loss, calls = trainer.method.loss, []

    def poisoned(*args: object, **options: object):
        calls.append(1)
        result = loss(*args, **options)
        return type(result)(result.total * (float("nan") if len(calls) == 9 else 1.0), result.parts)

    trainer.method.loss = poisoned
    with pytest.raises(
        DivergedError, match=r"the loss is nan at step 9 \(pairs pair-\d+.*Lower training.learning_rate"
    ):
        trainer.run()
    saved = folder.latest_step()
    assert saved is not None
    assert saved[1]["position"]["step"] <= 8  # nothing was saved after it went wrong
    assert all(torch.isfinite(t).all() for name, t in saved[0].items() if name.startswith("model/"))


def test_a_full_disk_is_told_and_costs_nothing_saved_before(tmp_path: Path, monkeypatch) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    writes = []

    def full_after_three(*args: object) -> None:
        writes.append(1)
        if len(writes) > 3:
            raise OSError(28, "No space left on device")
        save_file(*args)

    save_file = checkpoint.save_file
    monkeypatch.setattr(checkpoint, "save_file", full_after_three)
    with pytest.raises(UserError, match=r"No space left on device.*intact: make room.*--resume"):
        tiny.tiny_trainer(folder).run()
    assert folder.latest_step() is not None


def test_collapse_is_a_warning() -> None:
    listener = Listener()
    flat = {"rsum": 3.0, "score_spread": 1e-7, "chance_rsum": 3.2}
    tiny.tiny_trainer(method="infonce", reporter=listener, validate=lambda _: flat, epochs=1).run()
    assert len(listener.warnings) == 1  # not in the warm-up
    assert "collapsed" in listener.warnings[0]
    listener = Listener()
    chance = {"rsum": 4.0, "score_spread": 1.0, "chance_rsum": 3.2}
    tiny.tiny_trainer(method="infonce", reporter=listener, validate=lambda _: chance, epochs=1).run()
    assert "at chance level (R_sum 4.0, random scores give 3.2)" in listener.warnings[0]
    listener = Listener()
    recalls = iter([200.0, 200.8, 101.0, 18.7])  # two epochs of warm-up, two after it
    falling = lambda _: {"rsum": next(recalls), "score_spread": 0.013, "chance_rsum": 3.2}  # noqa: E731
    tiny.tiny_trainer(method="infonce", reporter=listener, validate=falling, epochs=2).run()
    assert len(listener.warnings) == 1
    assert "fallen to 18.7 from 200.8" in listener.warnings[0]
    assert "fallen to 5.0" in collapse_warnings({"rsum": 5.0, "chance_rsum": 3.2}, best_rsum=200.0)[0]


def test_gradient_caching_gives_the_gradients_of_the_whole_batch() -> None:
    whole = tiny.tiny_trainer()
    chunked = tiny.tiny_trainer(grad_cache_chunk_size=5)
    for trainer in (whole, chunked):
        trainer.matcher.double()
        for module in trainer.matcher.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # its random numbers would fall differently
    batch = whole.batches.take(np.arange(16))
    for trainer in (whole, chunked):
        doubled = type(batch)(**{**vars(batch), "images": batch.images.double(), "sentences": batch.sentences.double()})
        trainer.method.loss(trainer.step.forward, doubled, warmup=False).total.backward()
    for one, other in zip(whole.matcher.parameters(), chunked.matcher.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-10, atol=1e-14)


def test_gradient_caching_is_refused_with_batch_statistics() -> None:
    matcher = build_matcher("vse-infty", vocab_size=9, image_dim=4, embed_size=8, word_dim=4)
    with pytest.raises(UserError, match="'vse-infty' normalises by batch statistics"):
        GradCacheForward(matcher, 4)


def test_gradient_caching_is_refused_for_cross_attention() -> None:
    from sremkit.config.recipes import TrainingSettings
    from sremkit.data import Batches, Vocabulary
    from sremkit.data.generated.scenes import make_scenes
    from sremkit.methods import build_method
    from sremkit.training.trainer import Trainer

    pairs = make_scenes(8)
    vocabulary = Vocabulary.build(pairs.texts, min_count=1)
    matcher = build_matcher(
        "scan-t2i", vocab_size=len(vocabulary), image_dim=pairs.image_features.dim, embed_size=8, word_dim=8
    )
    trainer = Trainer(
        matcher,
        build_method("infonce"),
        Batches(pairs, batch_size=8, vocabulary=vocabulary),
        TrainingSettings(epochs=1, warmup_epochs=0, grad_cache_chunk_size=4),
        device=torch.device("cpu"),
    )
    with pytest.raises(UserError, match=r"'scan-t2i' compares words with regions.*lower training\.batch_size"):
        trainer.run()


def test_bad_features_in_the_middle_are_told_and_lose_nothing(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    tiny.tiny_trainer(folder, epochs=0).run()  # the warm-up alone
    pairs = tiny.tiny_pairs()
    broken = pairs.image_features.array.copy()
    broken[3] = np.nan
    object.__setattr__(pairs, "image_features", ArrayFeatures(broken, name="train_ims.npy"))
    with pytest.raises(UserError, match=r"train_ims\.npy, row 3"):
        tiny.tiny_trainer(folder, pairs=pairs, validate=None).run()
    tiny.tiny_trainer(folder).run()
    assert len(folder.read_metrics()) == 8


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precision_learns_as_well(precision: str) -> None:
    full, lower = Listener(), Listener()
    tiny.tiny_trainer(reporter=full, epochs=2).run()
    tiny.tiny_trainer(reporter=lower, epochs=2, precision=precision, float32_steps=0).run()
    assert lower.rows[-1]["loss"] == pytest.approx(full.rows[-1]["loss"], rel=0.05)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_it_is_validated_in_the_precision_of_its_training(precision: str) -> None:
    seen = []
    trainer = tiny.tiny_trainer(epochs=1, precision=precision)  # whose steps are all among the first
    trainer.validate = lambda matcher: seen.append(torch.is_autocast_enabled("cpu")) or {"rsum": 1.0}
    trainer.run()
    assert set(seen) == {precision == "bf16"}


def halves_of_a_run(folder: RunFolder | None = None, **settings) -> list[bool]:
    """Whether each step of a run in bf16 computed in it."""
    seen: list[bool] = []
    trainer = tiny.tiny_trainer(folder, precision="bf16", **settings)
    compare = trainer.matcher.compare
    trainer.matcher.compare = lambda *a: seen.append(torch.is_autocast_enabled("cpu")) or compare(*a)
    trainer.validate = None
    trainer.run()
    return seen


@pytest.mark.parametrize("full", [0, 3, 1000])
def test_the_first_steps_of_half_precision_are_in_full(full: int) -> None:
    seen = halves_of_a_run(epochs=2, float32_steps=full)
    assert len(seen) > 3
    assert seen == [step >= full for step in range(len(seen))]


def test_full_precision_is_the_default_start_and_is_not_begun_again(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", config="")
    begun = halves_of_a_run(folder, epochs=1)
    assert not any(begun)
    gone_on = halves_of_a_run(folder, epochs=2, float32_steps=len(begun) + 1)
    assert gone_on == [False, *[True] * (len(gone_on) - 1)]
    assert any(gone_on)


class StandIn:
    """In the place of captured steps, which need a CUDA device."""

    def __init__(self, step: Callable) -> None:
        self.step, self.story = step, []

    def reset(self) -> None:
        pass

    def eager(self, batch: Batch) -> StepResult:
        self.story.append("eager")
        return self.step(batch)

    def __call__(self, batch: Batch) -> StepResult:
        self.story.append("captured")
        return self.step(batch)


@pytest.mark.parametrize(("precision", "usual"), [("bf16", 3), ("float32", 0)])
def test_only_steps_in_the_precision_of_the_training_are_captured(precision: str, usual: int) -> None:
    trainer = tiny.tiny_trainer(epochs=1, precision=precision, float32_steps=3)
    trainer.run_step.graphed = StandIn(trainer.run_step._run)
    trainer.run()
    story = trainer.run_step.graphed.story
    assert len(story) > 3
    assert story == ["eager"] * usual + ["captured"] * (len(story) - usual)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
def test_a_compiled_model_trains_alike() -> None:
    eager, compiled = Listener(), Listener()
    tiny.tiny_trainer(reporter=eager, epochs=1, warmup_epochs=0).run()
    tiny.tiny_trainer(reporter=compiled, epochs=1, warmup_epochs=0, compile=True).run()
    # Dropout draws other numbers inside a compiled graph, so the losses agree only roughly.
    assert compiled.rows[-1]["loss"] == pytest.approx(eager.rows[-1]["loss"], rel=0.2)
