"""`srem bench audit` at its smallest: cells, measures, table and figure."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_pairs import make_pairs
from sremkit.audit.scoring.types import NoiseRate, PairScores, ScoringSettings
from sremkit.bench import audit
from sremkit.bench.audit import AuditCell, audit_cells, audit_table, best_recall, measure, run_audit_bench
from sremkit.bench.audit_collections import NoisyPairs, read_labelled
from sremkit.bench.rivals import Detection
from sremkit.cli.main import main
from sremkit.data import Pairs
from sremkit.errors import UserError

SMALL = {"sizes": [150], "seeds": [0], "kinds": ["random", "one-word"], "rates": [0.4]}
RIVALS = ["similarity", "lemon-tuned"]


def test_measures_by_hand() -> None:
    # Scores from low to high: wrong, wrong, right, wrong, right. At precision 0.75 the first four: recall 1.
    is_wrong, score = np.array([True, False, True, True, False]), np.array([0.1, 0.9, 0.2, 0.6, 0.4])
    assert best_recall(is_wrong, score, 0.75) == 1
    assert best_recall(is_wrong, score, 0.8) == pytest.approx(2 / 3)
    assert best_recall(~is_wrong, score, 0.8) == 0
    flagged = np.array([True, False, True, False, True])
    row = measure(Detection(score, flagged=flagged, rate=(0.5, 0.4, 0.59)), is_wrong, 0.75)
    assert row["flagged_precision"] == row["flagged_recall"] == pytest.approx(2 / 3)
    assert row["rate_holds"] is False  # 0.6 is outside
    assert measure(Detection(score, rate=(0.5, 0.4, 0.6)), is_wrong, 0.75)["rate_holds"] is True
    half = measure(Detection(score, measured=np.array([True, True, True, True, False])), is_wrong, 0.75)
    assert half["labels"] == 1
    assert half["auroc"] == 1
    assert half["true_rate"] == 0.6


def test_finished_cells_are_kept_and_run_again_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = audit_cells(["scenes"], RIVALS, **SMALL)
    ran: list[str] = []

    def run_cell(cell: AuditCell, folder: Path, real=audit.run_cell) -> dict:
        ran.append(f"{cell.kind} {cell.detector}")
        return real(cell, folder)

    monkeypatch.setattr(audit, "run_cell", run_cell)
    rows = run_audit_bench(cells, tmp_path, subprocesses=False)
    assert ran == ["random similarity", "random lemon-tuned", "one-word similarity", "one-word lemon-tuned"]
    assert [row["pairs"] for row in rows] == [150] * 4
    assert rows[0]["auroc"] > rows[2]["auroc"]  # one wrong word is harder to find than another caption
    assert [row["labels"] for row in rows] == [0, 30, 0, 30]
    ran.clear()
    again = run_audit_bench(cells, tmp_path, subprocesses=False, again=["similarity"])
    assert ran == ["random similarity", "one-word similarity"]
    assert [row["auroc"] for row in again] == [row["auroc"] for row in rows]
    table = audit_table(rows).as_markdown()
    assert "*scenes, 150 pairs*" in table
    assert f"| random | {rows[0]['true_rate']:.1%} | similarity | {rows[0]['auroc']:.3f} |" in table
    files = audit.draw_audit_figure(rows, tmp_path / "figure")
    assert "lemon-tuned" in files[1].read_text()


def test_the_audit_has_a_cutoff_and_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, is_wrong = make_pairs(num_images=50, captions=2)
    given = PairScores.unscored(100, rate=NoiseRate(0.3, 0.2, 0.4))
    given = replace(given, match_prob=np.where(is_wrong, 0.01, 0.9), fold=np.zeros(100, dtype=np.int64))
    seeds = []

    def score_pairs(scored: Pairs, settings: ScoringSettings) -> PairScores:
        assert scored is pairs
        seeds.append(settings.seed)
        return given

    monkeypatch.setattr(audit, "score_pairs", score_pairs)
    row = measure(audit.detect("audit", NoisyPairs(pairs, is_wrong), seed=3, precision=0.9), is_wrong, 0.9)
    assert seeds == [3]
    assert row["auroc"] == row["flagged_recall"] == row["flagged_precision"] == 1
    assert (row["rate_low"], row["estimated_rate"], row["rate_high"]) == (0.2, 0.3, 0.4)


def test_the_command_runs_cells_in_subprocesses(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "b.csv"
    command = ["bench", "audit", "--data", "scenes", "--sizes", "150", "--kinds", "random", "--seeds", "1"]
    assert main([*command, "--detectors", "similarity", "-o", str(out), "--table", str(tmp_path / "b.md")]) == 0
    with out.open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["auroc"]) > 0.5
    assert float(row["peak_memory_mb"]) > 50
    assert "| random |" in (tmp_path / "b.md").read_text()
    assert "scenes random 0.4 0 similarity: AUROC" in capsys.readouterr().out


def labelled_file(folder: Path, labels: list[str]) -> Path:
    rng = np.random.default_rng(0)
    np.save(folder / "images.npy", rng.normal(size=(len(labels), 6)).astype(np.float32))
    np.save(folder / "texts.npy", rng.normal(size=(len(labels), 4)).astype(np.float32))
    rows = "".join(f"p{k},{k}.jpg,caption {k},{label}\n" for k, label in enumerate(labels))
    (folder / "pairs.csv").write_text("id,image,caption,bad\n" + rows)
    return folder / "pairs.csv"


def test_the_truth_column_of_a_file_is_used(tmp_path: Path) -> None:
    labels = ["1", "no", "TRUE", "0", "wrong", "right"] * 5
    path = labelled_file(tmp_path, labels)
    features = {"image_features": tmp_path / "images.npy", "text_features": tmp_path / "texts.npy"}
    noisy = read_labelled(path, "bad", folder=tmp_path / "f", **features)
    assert noisy.is_wrong.tolist() == [True, False] * 15
    part = read_labelled(path, "bad", folder=tmp_path / "f", size=9, **features)
    assert [noisy.is_wrong[int(name[1:])] for name in part.pairs.pair_ids] == part.is_wrong.tolist()
    with pytest.raises(UserError, match="has no column 'worse'; its columns are id, image, caption, bad"):
        read_labelled(path, "worse", folder=tmp_path, **features)
    path = labelled_file(tmp_path, ["1", "maybe"])
    with pytest.raises(UserError, match=r"row 1: the column bad must be 1 \(wrong\) or 0 \(right\), got 'maybe'"):
        read_labelled(path, "bad", folder=tmp_path, **features)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "pairs.csv"], "--truth names the column"),
        (["--detectors", "lemons"], "'lemons' is no detector"),
        (["--sizes", "many"], "--sizes takes comma-separated numbers"),
        (["--kinds", "rude", "--data", "scenes", "--sizes", "20"], "the kinds of wrong captions are random,"),
    ],
)
def test_mistakes_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture, options: list[str], message: str
) -> None:
    assert main(["bench", "audit", "-o", str(tmp_path / "x.csv"), "--seeds", "1", *options]) == 2
    assert message in capsys.readouterr().err
