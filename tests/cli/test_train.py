"""Train, evaluate, compare and look at the demo, as a user would: through the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from sremkit.cli.main import main
from sremkit.demo import MARKER, RECIPES, make_room
from sremkit.errors import UserError
from sremkit.experiment import finished_runs, training_run
from sremkit.training.run_folder import RunFolder

TINY = [
    "--set", "data.train_options.num_scenes=24", "--set", "data.options.num_scenes=10",
    "--set", "training.epochs=2", "--set", "training.warmup_epochs=1", "--set", "training.decay_after=1",
    "--set", "training.batch_size=32", "--set", "model.embed_size=16", "--set", "model.word_dim=8",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "srem"
    assert main(["train", "scenes-srem", *TINY, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def other_run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "infonce"
    assert main(["train", "scenes-infonce", *TINY, "--out", str(out)]) == 0
    return out


def test_a_run_leaves_what_it_promises(run: Path) -> None:
    assert {entry.name for entry in run.iterdir()} == {
        "config.toml", "run.json", "record.json", "metrics.jsonl", "checkpoints", "statistics", "tensorboard",
        "report.html",
    }  # fmt: skip
    record = json.loads((run / "record.json").read_text())
    assert record["noise"]["protocol"] == "caption"
    assert 0.3 < record["noise"]["rate"] <= 0.4
    assert len(record["noise"]["hash"]) == 16
    assert {"sremkit", "python", "torch", "device"} <= set(record["environment"])
    assert record["seconds"] > 0
    assert record["peak_memory_mb"] > 0
    assert len(RunFolder.open(run).read_metrics()) == 3
    page = (run / "report.html").read_text()
    assert page.count("<svg") == 3
    assert record["noise"]["hash"] in page
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page) == []  # it loads nothing


def test_tensorboard_can_read_the_events(run: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("val/rsum")] == [
        row["step"] for row in RunFolder.open(run).read_metrics()
    ]


def test_a_second_run_in_the_same_folder_is_refused(run: Path, capsys) -> None:
    assert main(["train", "scenes-srem", *TINY, "--out", str(run)]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_resuming_a_finished_run_changes_nothing(run: Path) -> None:
    before = (run / "metrics.jsonl").read_text()
    assert main(["train", "--resume", str(run)]) == 0
    assert (run / "metrics.jsonl").read_text() == before


def test_resuming_a_finished_run_says_so(run: Path, capsys) -> None:
    assert main(["train", "--resume", str(run)]) == 0
    assert "was finished already" in capsys.readouterr().out


def test_a_run_that_never_began_does_not_stand_in_the_way(tmp_path: Path, monkeypatch) -> None:
    out = str(tmp_path / "run")
    with monkeypatch.context() as broken:
        broken.setattr(training_run, "make_trainer", _fails)
        with pytest.raises(RuntimeError, match="no such device"):
            main(["train", "scenes-srem", *TINY, "--out", out])
    assert main(["train", "scenes-srem", *TINY, "--out", out]) == 0


def _fails(*rest: object, **more: object) -> None:
    raise RuntimeError("no such device")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["train", "scenes-srem", *TINY, "--out", "file/run"], "file"),
        (["demo", *TINY, "-o", "file"], "file"),
        (["eval", "RUN", "-o", "file/x.json"], "file"),
    ],
)
def test_a_folder_that_cannot_be_written_is_a_sentence(
    command: list[str], named: str, run: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("not a folder")
    assert main([str(run) if part == "RUN" else part for part in command]) == 2
    error = capsys.readouterr().err
    assert error.startswith("srem: ")
    assert named in error
    assert Path("file").read_text() == "not a folder"


def test_a_recipe_without_its_data_says_how_to_find_them(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("SREMKIT_DATA", str(tmp_path / "nowhere"))
    assert main(["train", "flickr8k-dual-srem", "-o", str(tmp_path / "run")]) == 2
    assert "set the variable SREMKIT_DATA to the folder that holds flickr8k" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "name a recipe to train, or a run to go on with"),
        (["train", "scenes-srm"], "did you mean 'scenes-srem'"),
        (["train", "scenes-srem", "--set", "training.epoch=3"], "did you mean 'training.epochs'"),
        (["train", "scenes-srem", "--set", "method.margn=3"], "margn"),
        (["train", "scenes-srem", "--set", "model.embed=3"], "did you mean 'model.embed_size'"),
        (["train", "scenes-srem", "--set", "model.name=sgrr"], "did you mean"),
        (
            ["train", "scenes-srem", "--set", "model.name=clip"],
            "with --set model.folder=FOLDER",
        ),
        (
            ["train", "scenes-srem-plus", *TINY, "--set", "method.clean_prob_power=-1"],
            "[method] will not do: clean_prob_power",
        ),
        (["train", "--resume", "nowhere"], "nowhere holds no run"),
        (["eval", "nowhere"], "holds no run"),
    ],
)
@pytest.mark.filterwarnings("ignore::sremkit.config.recipes.OptionsDroppedWarning")
def test_mistakes_are_sentences(arguments: list[str], message: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("srem: ")
    assert message in error


def test_print_config_shows_everything_and_trains_nothing(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "scenes-srem", "--set", "training.epochs=7", "--print-config"]) == 0
    out = capsys.readouterr().out
    assert "epochs = 7" in out
    assert "keep_statistics = 3" in out  # defaults too
    assert list(tmp_path.iterdir()) == []


def test_eval_prints_the_table_and_writes_json(run: Path, capsys) -> None:
    assert main(["eval", str(run), "--split", "test"]) == 0
    out = capsys.readouterr().out
    assert "R_sum" in out
    assert "single model" in out
    result = json.loads((run / "eval-test.json").read_text())
    assert result["ensemble"] is False
    assert result["metrics"]["rsum"] > 0
    assert result["noise"]["hash"] in out


def test_a_run_in_half_precision_is_evaluated_in_it(run: Path, tmp_path: Path, monkeypatch) -> None:
    half = tmp_path / "half"
    assert main(["train", "scenes-infonce", *TINY, "--set", "training.precision=bf16", "--out", str(half)]) == 0
    seen = []
    score_matrix = finished_runs.score_matrix
    monkeypatch.setattr(
        finished_runs,
        "score_matrix",
        lambda *a: seen.append(torch.is_autocast_enabled("cpu")) or score_matrix(*a),
    )
    assert main(["eval", str(run), str(half), "-o", str(tmp_path / "both.json")]) == 0
    assert seen == [False, True]


def test_an_ensemble_does_not_replace_what_its_first_member_reached(
    run: Path, other_run: Path, tmp_path: Path, capsys
) -> None:
    assert main(["eval", str(run), "-o", str(tmp_path / "new" / "alone.json")]) == 0
    clean = tmp_path / "clean"
    assert main(["train", "scenes-infonce", *TINY, "--set", "noise.rate=0", "--out", str(clean)]) == 0
    capsys.readouterr()
    assert main(["eval", str(run), str(clean)]) == 0
    printed = capsys.readouterr().out
    assert "rate 0.0000" in printed
    assert printed.count("noise per caption") == 2
    assert main(["eval", str(run), "--folds", "2"]) == 0
    alone = json.loads((tmp_path / "new" / "alone.json").read_text())
    together = json.loads((run / "eval-test+clean.json").read_text())
    folds = json.loads((run / "eval-test-2-folds.json").read_text())
    assert (alone["ensemble"], together["ensemble"], folds["folds"]) == (False, True, 2)
    assert not alone["seen_in_training"]


def test_an_ensemble_is_named_so_and_folds_are_averaged(run: Path, other_run: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "both.json"
    assert main(["eval", str(run), str(other_run), "--folds", "2", "-o", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "ensemble of 2" in printed
    assert "mean of 2 folds" in printed
    assert json.loads(out.read_text())["folds"] == 2


def test_a_run_whose_recipe_tests_in_folds_is_evaluated_so(run: Path, tmp_path: Path, capsys) -> None:
    folded = tmp_path / "folded"
    assert main(["train", "scenes-infonce", *TINY, "--set", "data.test_folds=2", "--out", str(folded)]) == 0
    for arguments in ([], ["--folds", "1"], ["--split", "val"]):
        capsys.readouterr()
        assert main(["eval", str(folded), *arguments]) == 0
        assert ("mean of 2 folds" in capsys.readouterr().out) == (arguments == [])
    files = {"eval-test-2-folds.json": 2, "eval-test.json": 1, "eval-val.json": 1}
    results = {name: json.loads((folded / name).read_text()) for name in files}
    assert {name: result["folds"] for name, result in results.items()} == files
    assert main(["eval", str(folded), "--folds", "2", "-o", str(tmp_path / "two.json")]) == 0
    assert json.loads((tmp_path / "two.json").read_text()) == results["eval-test-2-folds.json"]


def test_compare_shows_what_differs(run: Path, other_run: Path, capsys) -> None:
    assert main(["compare", str(run), str(other_run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "method.name" in lines[0]
    assert "batch_size" not in lines[0]  # the same in both
    assert " srem " in lines[1]
    assert " infonce " in lines[2]


def test_the_demo_trains_both_prints_a_table_and_writes_a_report(tmp_path: Path, capsys) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "-o", str(out), *TINY]) == 0
    printed = capsys.readouterr().out
    assert "InfoNCE" in printed
    assert "SREM" in printed
    assert "Next steps" in printed
    page = (out / "report.html").read_text()
    assert page.count("data:image/webp") == 24
    assert page.count("<svg") == 4
    assert "best caption" in page
    before = (out / "report.html").stat().st_mtime_ns
    assert main(["demo", "-o", str(out), *TINY, "--set", "noise.rate=0"]) == 0  # a finished demo is run anew
    assert (out / "report.html").stat().st_mtime_ns > before
    printed = capsys.readouterr().out
    assert "scenes, 0 % of them" in printed
    assert "nan" not in printed


def a_demo(out: Path, *, settings: list[str]) -> None:
    """What a demo leaves, by name alone, and something of the user's."""
    for name in RECIPES.values():
        (out / name).mkdir(parents=True)
        (out / name / "config.toml").write_text("")
    (out / MARKER).write_text(json.dumps(settings))
    (out / "notes.txt").write_text("mine")


def test_a_demo_continues_starts_again_or_refuses_the_folder(tmp_path: Path) -> None:
    continued, other, finished, foreign = (tmp_path / name for name in ("continued", "other", "finished", "foreign"))
    for out in (continued, other, finished):
        a_demo(out, settings=["rate = 0.4"])
    (finished / "report.html").write_text("a demo's")
    foreign.mkdir()
    (foreign / "report.html").write_text("an audit's")
    runs = set(RECIPES.values())
    for out, settings, left in (
        (continued, "rate = 0.4", runs),
        (other, "rate = 0.0", set()),
        (finished, "rate = 0.4", set()),
    ):
        make_room(out, [settings])
        assert {entry.name for entry in out.iterdir()} == left | {MARKER, "notes.txt"}
        assert json.loads((out / MARKER).read_text()) == [settings]
    with pytest.raises(UserError, match="not of this version's demo; name another folder"):
        make_room(foreign, ["rate = 0.4"])
    assert (foreign / "report.html").read_text() == "an audit's"


def test_a_demos_settings_are_read_before_anything_is_removed(tmp_path: Path, capsys) -> None:
    out = tmp_path / "demo"
    a_demo(out, settings=[])
    assert main(["demo", "-o", str(out), *TINY, "--set", "noise.rte=0.6"]) == 2
    assert "noise.rte" in capsys.readouterr().err
    assert all((out / name / "config.toml").exists() for name in RECIPES.values())
