"""The speed bench runs anywhere at tiny sizes, keeps to its budget, and counts what it says it counts."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path

import pytest
import torch

from benchmarks import speed
from benchmarks.flops import counted_work
from benchmarks.kernel_check import can_check
from benchmarks.steps import StepBenchmark, make_batch, median_seconds
from sremkit.models import BACKBONES, build_matcher


def arguments(given: list[str]):
    return speed.build_parser().parse_args(given)


def measured(args) -> dict:
    return speed.run(args).result


TINY = ["--small", "--device", "cpu", "--batch-size", "3", "--min-run-time", "0", "--eval-images", "2"]
TINY += ["--eval-texts", "3", "--precision", "float32"]


def test_rows_are_printed_and_written_for_training_and_scoring(tmp_path: Path, capsys) -> None:
    file = tmp_path / "speed.json"
    found = measured(arguments(["saf", "scan-t2i", *TINY, "--modes", "eager", "--json", str(file)]))
    rows = [(row["backbone"], row["mode"], row["task"]) for row in found["rows"]]
    assert rows == [
        ("saf", "eager", "training step"),
        ("saf", "eager", "scores 2x3"),
        ("scan-t2i", "eager", "training step"),
        ("scan-t2i", "eager", "scores 2x3"),
    ]
    assert json.loads(file.read_text()) == found
    assert found["peaks"]["flops_per_second"] > 1e8
    for row in found["rows"]:
        assert row["seconds"] > 0
        assert row["ratio"] == pytest.approx(row["seconds"] / row["roofline"])
        if row["task"] == "training step":
            assert row["pairs_per_second"] == pytest.approx(3 / row["seconds"])
    assert "saf        eager          training step" in capsys.readouterr().out


def test_the_loop_over_captions_is_measured_first_and_the_others_against_it(tmp_path: Path, capsys) -> None:
    file = tmp_path / "speed.csv"
    few = [*TINY, "--eval-texts", "0", "--modes", "eager", "loop"]
    found = measured(arguments(["saf", "vse-infty", *few, "-o", str(file)]))
    rows = [(row["backbone"], row["mode"]) for row in found["rows"]]
    assert rows == [("saf", "loop"), ("saf", "eager"), ("vse-infty", "eager")]  # which has no loop
    loop, plain, other = found["rows"]
    assert plain["speedup"] == pytest.approx(loop["seconds"] / plain["seconds"])
    assert "speedup" not in loop
    assert "speedup" not in other
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].endswith(f"{plain['speedup']:.1f}")
    with file.open() as written:
        assert [row["mode"] for row in csv.DictReader(written)] == ["loop", "eager", "eager"]


def test_a_measurement_is_the_median_of_calls_after_the_warm_up() -> None:
    done: list[int] = []
    assert median_seconds(lambda: done.append(1), min_run_time=0.0, warmup=4) < 1
    assert len(done) >= 6  # warm-up, estimate of a block, one block


def test_what_does_not_fit_the_budget_is_skipped_and_said(capsys) -> None:
    found = measured(arguments(["saf", *TINY, "--budget-seconds", "0"]))
    assert found["rows"] == []
    assert "skipped: 0 s of the budget are left" in capsys.readouterr().out


def test_a_mode_that_fails_does_not_cost_the_others(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(speed, "scoring_row", refuse)
    found = measured(arguments(["saf", *TINY, "--modes", "eager"]))
    assert [row["task"] for row in found["rows"]] == ["training step"]
    assert found["failed"] == [{"backbone": "saf", "mode": "eager", "error": "RuntimeError"}]
    assert "FAILED: RuntimeError: no such thing" in capsys.readouterr().out
    assert speed.main(["saf", *TINY, "--modes", "eager"]) == 1
    assert capsys.readouterr().out.endswith("1 of 2 measurements failed\n")


def test_a_profile_names_the_operations_of_a_step(capsys) -> None:
    measured(arguments(["saf", *TINY, "--modes", "eager", "--eval-texts", "0", "--profile"]))
    printed = capsys.readouterr().out
    assert "Self CPU" in printed
    assert "aten::" in printed


def test_kernels_are_timed_where_they_run() -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    if not can_check("cpu"):
        pytest.skip("there is a GPU, so kernels are not interpreted")
    found = measured(arguments(["saf", *TINY, "--modes", "triton", "--eval-texts", "0"]))
    assert [row["mode"] for row in found["rows"]] == ["triton"]


def test_without_a_device_or_an_interpreter_the_check_is_skipped_with_a_message(capsys, monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    found = measured(arguments(["saf", *TINY, "--check", "--budget-seconds", "0"]))
    assert "kernels_right" not in found
    assert "the kernels are not checked" in capsys.readouterr().out


def test_a_row_that_is_measured_in_a_subprocess_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def through_pickle(work, *args):
        work, args = pickle.loads(pickle.dumps((work, args)))
        return work(*args)

    monkeypatch.setattr(speed, "run_in_subprocess", through_pickle)
    bench = StepBenchmark(arguments(["saf", *TINY, "--modes", "eager"]))
    peaks = {"flops_per_second": 1e9, "bytes_per_second": 1e9}
    there = speed.training_row_in_subprocess(bench, "saf", "eager", peaks)
    here = speed.training_row(bench, "saf", "eager", peaks)
    timed = {"seconds", "pairs_per_second", "ratio"}
    assert {k: v for k, v in there.items() if k not in timed} == {k: v for k, v in here.items() if k not in timed}
    assert there["seconds"] > 0


def test_cuda_graphs_are_measured_in_a_subprocess(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    monkeypatch.setattr(speed, "training_row_in_subprocess", lambda bench, name, *_: measured.append(name))
    monkeypatch.setattr(BACKBONES["vsrn"], "supports_cuda_graphs", False)
    bench = StepBenchmark(arguments(["saf", "vsrn", "dual", *TINY, "--eval-texts", "0", "--modes", "compiled-graph"]))
    bench.device = torch.device("cuda")
    for name, mode, measure in speed._measurements(bench):
        measure(bench, name, mode, {})
    assert measured == ["saf", "dual"]  # with kernels and without, if it supports CUDA graphs


def test_a_step_has_the_losses_of_the_backbone_itself() -> None:
    sizes = {"vocab_size": 8481, "image_dim": 24, "embed_size": 16, "word_dim": 8}
    batch = make_batch("vsrn", 3, words=(3, 3), regions=4, image_dim=24)
    without, with_captions = (
        counted_work(build_matcher("vsrn", **sizes, caption_size=10, caption_weight=weight).train(), batch)
        for weight in (0.0, 1.0)
    )
    # Of two words after the first each caption's state (10) meets the vocabulary, with two gradients.
    assert with_captions.flops - without.flops > 3 * 2 * (3 * 2) * 10 * 8481
    bench = StepBenchmark(arguments(["vsrn", *TINY]))
    matcher = bench.build("vsrn").train()
    bench.step(matcher, "eager")(bench.batch("vsrn", 3))
    assert matcher.captioner.output.weight.grad.abs().sum() > 0
