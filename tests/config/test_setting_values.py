"""Values of settings are checked before anything is read or trained: types, ranges, devices."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import pytest

from sremkit.cli.main import main
from sremkit.config.recipes import DataSettings, NoiseSettings, TrainingSettings, load_recipe
from sremkit.config.settings import SettingsError, check_options, ranges_of

OUT_OF_RANGE = [
    ("training.epochs=-1", r"'training\.epochs' must be at least 0, got -1"),
    ("training.warmup_epochs=-1", r"'training\.warmup_epochs' must be at least 0, got -1"),
    ("training.batch_size=0", r"'training\.batch_size' must be at least 1, got 0"),
    ("training.learning_rate=-1", r"'training\.learning_rate' must be a positive number, got -1\.0"),
    ("training.learning_rate=nan", r"'training\.learning_rate' must be a positive number, got nan"),
    ("training.learning_rate=inf", r"'training\.learning_rate' must be a positive number, got inf"),
    ("training.decay_after=-1", r"'training\.decay_after' must be at least 0, got -1"),
    ("training.decay_factor=2", r"'training\.decay_factor' must be at least 0 and at most 1, got 2\.0"),
    ("training.weight_decay=-0.1", r"'training\.weight_decay' must be 0 or a positive number, got -0\.1"),
    ("training.max_grad_norm=0", r"'training\.max_grad_norm' must be more than 0, got 0\.0"),
    ("training.ema_decay=1", r"'training\.ema_decay' must be 0, or a decay between 0 and 1 .*, got 1\.0"),
    ("training.float32_steps=-1", r"'training\.float32_steps' must be at least 0, got -1"),
    ("training.seed=-1", r"'training\.seed' must be at least 0, got -1"),
    ("training.workers=-1", r"'training\.workers' must be at least 0, got -1"),
    ("training.threads=0", r"'training\.threads' must be at least 1, got 0"),
    ("training.grad_cache_chunk_size=0", r"'training\.grad_cache_chunk_size' must be at least 1, got 0"),
    ("training.patience=-1", r"'training\.patience' must be at least 0, got -1"),
    ("training.checkpoint_minutes=-1", r"'training\.checkpoint_minutes' must be at least 0, got -1\.0"),
    ("training.keep_statistics=-1", r"'training\.keep_statistics' must be at least 0, got -1"),
    ("training.min_crop_area=0", r"'training\.min_crop_area' must be more than 0 and at most 1, got 0"),
    ("training.flip=2", r"'training\.flip' must be at least 0 and at most 1, got 2"),
    ("noise.rate=1.1", r"'noise\.rate' must be at least 0 and at most 1, got 1\.1"),
    ("noise.seed=-1", r"'noise\.seed' must be at least 0, got -1"),
    ("data.test_folds=0", r"'data\.test_folds' must be at least 1, got 0"),
    ("data.min_count=0", r"'data\.min_count' must be at least 1, got 0"),
    ("data.image_workers=-1", r"'data\.image_workers' must be at least 0, got -1"),
    ("data.trusted_images=-1", r"'data\.trusted_images' must be at least 0, got -1"),
]


@pytest.mark.parametrize(("setting", "message"), OUT_OF_RANGE, ids=[s for s, _ in OUT_OF_RANGE])
def test_a_number_out_of_range_is_refused_with_the_whole_name_of_its_setting(setting: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_recipe("scenes-srem", [setting])


def test_every_range_is_tried_above() -> None:
    tried = {setting.partition("=")[0] for setting, _ in OUT_OF_RANGE}
    tables = {"data": DataSettings, "noise": NoiseSettings, "training": TrainingSettings}
    assert {f"{table}.{name}" for table, settings in tables.items() for name in ranges_of(settings)} == tried


def test_settings_at_the_edge_of_their_ranges_are_taken() -> None:
    TrainingSettings(
        epochs=0, batch_size=1, decay_after=0, decay_factor=1.0, max_grad_norm=math.inf, ema_decay=0.999, threads=1,
        patience=0, grad_cache_chunk_size=1, checkpoint_minutes=0.0, keep_statistics=0, device="cuda:1",
    )  # fmt: skip
    NoiseSettings(rate=1.0)
    DataSettings(source="scenes", min_count=1, test_folds=1)


def test_settings_made_in_python_are_told_the_same() -> None:
    with pytest.raises(SettingsError, match=r"'training\.batch_size' must be at least 1, got 0"):
        TrainingSettings(batch_size=0)
    with pytest.raises(SettingsError, match=r"'training\.batch_size' must be a whole number, got 'many'"):
        dataclasses.replace(TrainingSettings(), batch_size="many")
    with pytest.raises(SettingsError, match=r"'noise\.rate' must be at least 0 and at most 1, got 40"):
        NoiseSettings(rate=40)
    with pytest.raises(SettingsError, match=r"'data\.min_count' must be at least 1, got 0"):
        DataSettings(source="scenes", min_count=0)


def test_a_run_without_any_epoch_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"are both 0, so nothing would be trained; set one of them"):
        load_recipe("scenes-srem", ["training.epochs=0", "training.warmup_epochs=0"])
    assert load_recipe("scenes-srem", ["training.epochs=0"]).training.epochs == 0  # the warm-up alone


@pytest.mark.parametrize("device", ["gpu", "", "cuda:", "cuda:x", "cuda:-1", "CPU"])
def test_a_device_that_nobody_has_is_answered_with_those_there_are(device: str) -> None:
    with pytest.raises(SettingsError, match=r"'training\.device' must be auto, cpu, cuda, .* or mps; got"):
        load_recipe("scenes-srem", [f'training.device="{device}"'])


def build(
    *,
    width: int,
    share: float = 0.5,
    fast: bool = False,
    kind: Literal["soft", "hard"] = "soft",
    limit: float | None = None,
    sizes: tuple[int, int] = (1, 2),
    **others: object,
) -> None: ...


def test_options_are_of_the_annotated_types() -> None:
    right = {"width": 2, "share": 1, "fast": True, "kind": "hard", "limit": None, "unknown": 3}
    check_options(build, right, where="model")
    check_options(build, {"width": 2, "sizes": [1, 2]}, where="model")  # more than a simple type: not looked at


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"width": 2.5}, r"'model\.width' must be a whole number, got 2\.5"),
        ({"width": True}, r"'model\.width' must be a whole number, got True"),
        ({"share": "abc"}, r"'model\.share' must be a number, got 'abc'"),
        ({"fast": 1}, r"'model\.fast' must be true or false, got 1"),
        ({"kind": "firm"}, r"'model\.kind' must be one of 'soft', 'hard', got 'firm'"),
        ({"limit": "high"}, r"'model\.limit' must be a number, got 'high'"),
    ],
)
def test_an_option_of_another_type_is_refused(option: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_options(build, option, where="model")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["training.batch_size=0"], "'training.batch_size' must be at least 1, got 0"),
        (["method.threshold=abc"], "'method.threshold' must be a number, got 'abc'"),
        (["model.dropout=abc"], "'model.dropout' must be a number, got 'abc'"),
        (["method.filtration=3"], "'method.filtration' must be true or false, got 3"),
    ],
)
def test_the_command_line_says_it_in_one_sentence(
    settings: list[str], message: str, tmp_path, capsys: pytest.CaptureFixture
) -> None:
    small = ["data.train_options.num_scenes=12", "data.options.num_scenes=8", "training.device=cpu"]
    given = [part for setting in [*small, *settings] for part in ("--set", setting)]
    assert main(["train", "scenes-srem", "--out", str(tmp_path / "run"), *given]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
