"""The speed bench runs anywhere at tiny sizes, keeps to its budget, and counts what it says it counts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from sremkit.bench import speed
from sremkit.bench.backbones import make_batch
from sremkit.bench.counted import counted_work, recurrence_operations
from sremkit.bench.kernel_check import can_check
from sremkit.bench.operations import BY_HAND, Sizes, Work, scoring_work, training_work
from sremkit.bench.stepping import Bench
from sremkit.cli.main import build_parser, main
from sremkit.models import BACKBONES, build_matcher


def arguments(given: list[str]):
    return build_parser().parse_args(["bench", "speed", *given])


TINY = ["--small", "--device", "cpu", "--batch-size", "3", "--patience", "0", "--eval-images", "2"]
TINY += ["--eval-texts", "3", "--precision", "float32"]


def test_rows_are_printed_and_written_for_training_and_scoring(tmp_path: Path, capsys) -> None:
    file = tmp_path / "speed.json"
    found = speed.run(arguments(["saf", "scan-t2i", *TINY, "--ways", "plain", "--json", str(file)]))
    rows = [(row["backbone"], row["way"], row["what"]) for row in found["rows"]]
    assert rows == [
        ("saf", "plain", "training step"),
        ("saf", "plain", "scores 2x3"),
        ("scan-t2i", "plain", "training step"),
        ("scan-t2i", "plain", "scores 2x3"),
    ]
    assert json.loads(file.read_text()) == found
    assert found["ceilings"]["operations_a_second"] > 1e8
    for row in found["rows"]:
        assert row["seconds"] > 0
        assert row["ratio"] == pytest.approx(row["seconds"] / row["floor"])
        if row["what"] == "training step":
            assert row["pairs_a_second"] == pytest.approx(3 / row["seconds"])
    assert "saf        plain     training step" in capsys.readouterr().out


def test_the_loop_over_captions_is_measured_first_and_the_others_beside_it(tmp_path: Path, capsys) -> None:
    file = tmp_path / "speed.csv"
    few = [*TINY, "--eval-texts", "0", "--ways", "plain", "loop"]
    found = speed.run(arguments(["saf", "vse-infty", *few, "-o", str(file)]))
    rows = [(row["backbone"], row["way"]) for row in found["rows"]]
    assert rows == [("saf", "loop"), ("saf", "plain"), ("vse-infty", "plain")]  # which nobody loops over
    loop, plain, other = found["rows"]
    assert plain["times_the_loop"] == pytest.approx(loop["seconds"] / plain["seconds"])
    assert "times_the_loop" not in loop
    assert "times_the_loop" not in other
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].endswith(f"{plain['times_the_loop']:.1f}")
    with file.open() as written:
        assert [row["way"] for row in csv.DictReader(written)] == ["loop", "plain", "plain"]


def test_a_slow_yardstick_is_measured_once_and_a_fast_one_three_times() -> None:
    for patience, calls in (("0", 1), ("100", 3)):
        bench = Bench(arguments(["saf", *TINY, "--patience", patience]))
        done: list[int] = []
        assert bench.few_seconds(lambda done=done: done.append(1)) < 1
        assert len(done) == calls


def test_what_does_not_fit_the_budget_is_skipped_and_said(capsys) -> None:
    found = speed.run(arguments(["saf", *TINY, "--budget-seconds", "0"]))
    assert found["rows"] == []
    assert "skipped: 0 s of the budget are left" in capsys.readouterr().out


def test_a_way_that_fails_does_not_cost_the_others(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(speed, "scoring_row", refuse)
    found = speed.run(arguments(["saf", *TINY, "--ways", "plain"]))
    assert [row["what"] for row in found["rows"]] == ["training step"]
    assert found["failed"] == [{"backbone": "saf", "way": "plain", "error": "RuntimeError"}]
    assert "FAILED: RuntimeError: no such thing" in capsys.readouterr().out
    assert main(["bench", "speed", "saf", *TINY, "--ways", "plain"]) == 1
    assert capsys.readouterr().out.endswith("1 of 2 measurements failed\n")


def test_a_profile_names_the_operations_of_a_step(capsys) -> None:
    speed.run(arguments(["saf", *TINY, "--ways", "plain", "--eval-texts", "0", "--profile"]))
    printed = capsys.readouterr().out
    assert "Self CPU" in printed
    assert "aten::" in printed


def test_kernels_are_timed_where_they_run() -> None:
    pytest.importorskip("triton", reason="the kernels need Triton")
    if not can_check("cpu"):
        pytest.skip("there is a GPU, so kernels are not interpreted")
    found = speed.run(arguments(["saf", *TINY, "--ways", "fused", "--eval-texts", "0"]))
    assert [row["way"] for row in found["rows"]] == ["fused"]


def test_without_a_device_or_an_interpreter_the_check_says_so(capsys, monkeypatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    found = speed.run(arguments(["saf", *TINY, "--check", "--budget-seconds", "0"]))
    assert "kernels_right" not in found
    assert "the kernels are not checked" in capsys.readouterr().out


def test_the_operations_of_a_small_comparison_by_hand() -> None:
    matcher = build_matcher("scan-t2i", vocab_size=10, image_dim=3, embed_size=2, word_dim=5)
    work = training_work(matcher, Sizes(images=2, regions=4, image_dim=3, lengths=[3, 1], itemsize=4))
    scoring = scoring_work(matcher, Sizes(images=2, regions=4, image_dim=3, lengths=[3, 1], itemsize=4))
    # n = 2, r = 4, D = 3, W = 4, d = 2, e = 5:
    # regions 4·2·4·3·2 = 192; GRU 3·2·(2·4·3·(5+2)·2) = 2016; attention 3·2·2·4·(4·2 + 4·2 + 4·4) = 1536
    assert work.operations == 192 + 2016 + 1536
    assert scoring.operations == 192 / 2 + 2016 / 3 + 1536 / 3  # without gradients, of which regions have one
    parameters = sum(p.numel() for p in matcher.parameters())
    # features twice 4·2·4·3·2 = 192; affinities and attention 5·8·2·4·4 = 1280; 48 bytes a parameter
    assert work.bytes == 192 + 1280 + 48 * parameters
    # features once 96; affinities and attention 4·4·2·4·4 = 512; 4 bytes a parameter; 2·2 scores of 4 bytes
    assert scoring.bytes == 96 + 512 + 4 * parameters + 16


def test_at_the_published_sizes_the_count_is_as_by_hand() -> None:
    lengths = [16] * 64 + [17] * 64
    options = {"vocab_size": 100, "image_dim": 2048}
    sizes = Sizes(images=128, regions=36, image_dim=2048, lengths=lengths, itemsize=2)
    saf, sgr = (training_work(build_matcher(name, **options), sizes) for name in ("saf", "sgr"))
    # In 1e12, n = 128, W = 2112, r = 36, d = 1024, s = 256: the projection 6·n·(W + n)·d·s = 0.451, attended
    # vectors 8·n·r·W·d = 0.080, attention 6·n·r·(W·d + r·d + r·W) = 0.063, the GRU 36·W·1324·d = 0.103, the
    # global vectors 6·d²·(n·r + n + W + n) = 0.044, regions 4·n·r·2048·d = 0.039, the filter 0.001: 0.78
    assert saf.operations == pytest.approx(0.78e12, rel=0.01)
    # SGR's two full steps, 2·12·n·(W + n)·s² = 0.451 and 2·12·n·s·sum (1 + w)² = 0.031, and the last one's
    # layers for n global nodes an image, 12·n·n·s² = 0.013; its attention is as much as SAF's filter: 0.495
    assert sgr.operations - saf.operations == pytest.approx(0.495e12, rel=0.01)


def test_a_row_that_is_measured_in_a_process_of_its_own_is_a_row() -> None:
    bench = Bench(arguments(["saf", *TINY, "--ways", "plain"]))
    ceilings = {"operations_a_second": 1e9, "bytes_a_second": 1e9}
    apart = speed.training_row_apart(bench, "saf", "plain", ceilings)
    usual = speed.training_row(bench, "saf", "plain", ceilings)
    differing = {"seconds", "pairs_a_second", "ratio"}
    assert {k: v for k, v in apart.items() if k not in differing} == {
        k: v for k, v in usual.items() if k not in differing
    }
    assert apart["seconds"] > 0


def test_what_is_recorded_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = []
    monkeypatch.setattr(speed, "training_row_apart", lambda bench, name, *_: apart.append(name))
    monkeypatch.setattr(BACKBONES["vsrn"], "recordable", False)
    bench = Bench(arguments(["saf", "vsrn", "dual", *TINY, "--eval-texts", "0", "--ways", "recorded"]))
    bench.device = torch.device("cuda")
    for _, _, job in speed._jobs(bench, {}):
        job()
    assert apart == ["saf", "dual"]  # with kernels and without, if it can be recorded


def test_the_floor_is_the_slower_of_computing_and_moving() -> None:
    work = Work(operations=100.0, bytes=10.0)
    assert work.floor(operations_a_second=10.0, bytes_a_second=5.0) == 10.0
    assert work.floor(operations_a_second=1000.0, bytes_a_second=5.0) == 2.0


#: Steps that compute nothing twice.
COUNTED = {
    **{name: (name, {"sim_dim": 32}) for name in ("saf", "sgr", "sgraf")},
    "scan-t2i": ("scan-t2i", {}),
    **{
        f"imram-{side}": ("imram", {"direction": side, "recompute": False})
        for side in ("text", "image", "full")
    },
    "imram-once": ("imram", {"num_steps": 1, "recompute": False}),
}


@pytest.mark.parametrize(("name", "options"), COUNTED.values(), ids=COUNTED)
def test_what_is_counted_by_hand_is_what_pytorch_counts(name: str, options: dict) -> None:
    assert {name for name, _ in COUNTED.values()} == set(BY_HAND)
    torch.manual_seed(0)
    matcher = build_matcher(
        name, vocab_size=8481, image_dim=96, embed_size=64, word_dim=40, **options
    ).train()
    batch = make_batch(name, 16, words=(9, 9), regions=36, image_dim=96)
    by_hand = training_work(matcher, Sizes(16, 36, 96, [9] * 16, 4))
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        matcher(batch)
    scoring = scoring_work(matcher, Sizes(16, 36, 96, [9] * 16, 4))
    assert forward.get_total_flops() == pytest.approx(scoring.operations, rel=0.02)
    # By hand every product has two gradients; PyTorch leaves out those that nobody asks for.
    assert counted_work(matcher, batch).operations == pytest.approx(by_hand.operations, rel=0.02)
    assert all(p.grad is None for p in matcher.parameters())


def test_a_step_has_the_losses_of_the_backbone_itself() -> None:
    sizes = {"vocab_size": 8481, "image_dim": 24, "embed_size": 16, "word_dim": 8}
    batch = make_batch("vsrn", 3, words=(3, 3), regions=4, image_dim=24)
    without, with_captions = (
        counted_work(build_matcher("vsrn", **sizes, caption_size=10, caption_weight=weight).train(), batch)
        for weight in (0.0, 1.0)
    )
    # Of two words after the first each caption's state (10) meets the vocabulary, with two gradients.
    assert with_captions.operations - without.operations > 3 * 2 * (3 * 2) * 10 * 8481
    bench = Bench(arguments(["vsrn", *TINY]))
    matcher = bench.build("vsrn").train()
    bench.step_of(matcher, "plain")(bench.batch("vsrn", 3))
    assert matcher.captioner.output.weight.grad.abs().sum() > 0


def test_pytorch_counts_what_nobody_counted_by_hand() -> None:
    matcher = build_matcher("dual", image_dim=24, text_dim=384, hidden_size=10, embed_size=5).train()
    with pytest.raises(ValueError, match="nobody has counted dual by hand; there are saf"):
        training_work(matcher, Sizes(1, 1, 4, [1], 4))
    work = counted_work(matcher, make_batch("dual", 3, image_dim=24))
    # Towers 2·3·(24·10 + 10·5 + 384·10 + 10·5) = 25,080 and 3·3 products of width 5, 90; backwards twice as much,
    # but for the gradients by the features, 2·3·(24·10 + 384·10) = 24,480, of which the norms need a row, 8,160.
    assert work.operations == 3 * (25_080 + 90) - 24_480 + 8_160


def test_a_recurrence_in_one_piece_by_hand() -> None:
    # 7 items of width 3 through weights (6, 3) and (6, 2): 2·7·(18 + 12); biases are no products.
    assert recurrence_operations((7, 3), [(6, 3), (6, 2), (6,), (6,)], 4, None) == 2 * 7 * 30
