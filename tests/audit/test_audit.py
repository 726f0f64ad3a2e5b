"""The audit around the scoring: every input row is in the result, with its verdict or its problem."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import sremkit
from audit.small_tables import GOOD, HEADER, audited, column, write_table
from fake_encoders import FakeImages
from layouts import coco_content, karpathy_content, write_image, write_json, write_shard
from sremkit.audit.audit import Audit
from sremkit.audit.embed import Encoders
from sremkit.audit.scoring.types import ScoringSettings
from sremkit.data import read_pairs
from sremkit.errors import DataError, UserError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def test_three_lines_find_the_wrong_pairs_and_write_a_report(tmp_path: Path, scorer, monkeypatch) -> None:
    path = write_table(tmp_path / "data", [row[1:3] for row in GOOD], header=["image", "caption"])
    monkeypatch.chdir(tmp_path)
    audit = sremkit.Audit.from_csv(path)
    audit.find(workers=0)
    report = audit.report()
    assert report == Path("pairs-audit/report.html")
    assert "wrong caption" in report.read_text(encoding="utf-8")
    assert column(audit, "id") == ["0", "1", "2", "3"]
    assert column(audit, "is_mismatch") == [False, True, True, False]


def test_every_row_has_its_own_verdict(tmp_path: Path, scorer) -> None:
    audit = audited(write_table(tmp_path / "data", GOOD), tmp_path / "out")
    rows = parquet.read_table(tmp_path / "out" / "pairs.parquet").to_pylist()
    assert rows == audit.get_issues().to_pylist()
    wrong = {name: rows[1][name] for name in rows[1] if name not in HEADER}
    assert wrong == {
        "id": "b",
        "image": "1.png",
        "text": "wrong caption",
        "match_probability": 0.01,
        "is_mismatch": True,
        "energy_i2t": 5.0,
        "energy_t2i": 4.0,
        "rank_i2t": 7,
        "rank_t2i": 8,
        "better_text": "a red square",
        "better_text_id": "a",
        "better_image": "0.png",
        "neighbor_text": "a red square",
        "neighbor_text_id": "a",
        "neighbor_image": "3.png",
        "unsupported_words": "caption",  # "wrong" occurs twice
        "fold": 1,
        "duplicate_text_group": None,
        "duplicate_image_group": None,
        "expected_precision": pytest.approx(0.99, abs=1e-6),  # (0.99 + 0.99) / 2: both pairs of this score
        "expected_recall": pytest.approx(0.99, abs=1e-6),  # 1.98 of 2.00 expected mismatches
        "repeated_caption": None,
        "conflicting_captions": None,
        "duplicate_row_of": None,
        "boilerplate": None,
        "other_language": None,
        "image_issue": "tiny",
        "reviewed": None,
        "problem": None,
    }
    assert [[row[name] for name in HEADER] for row in rows] == GOOD
    assert [row["better_text"] for row in rows] == [None, "a red square", "a red square", None]
    assert [row["duplicate_text_group"] for row in rows] == [0, None, None, 0]  # but for case and punctuation


def test_rows_without_a_score_keep_their_place_with_the_reason(tmp_path: Path, scorer) -> None:
    rows = [
        GOOD[0],
        ["x1", "none.png", "an image that is not there", "mit"],
        ["x2", "damaged.png", "an image that is damaged", "mit"],
        ["x3", "1.png", "   ", "mit"],
        ["x4", "1.png"],
        ["a", "1.png", "an id that was there before", "mit"],
        ["", "1.png", "no id", "mit"],
        *GOOD[1:],
    ]
    path = write_table(tmp_path / "data", rows)
    (path.parent / "damaged.png").write_bytes(b"nonsense")
    with path.open("ab") as file:
        file.write("y,1.png,caf\xe9,mit\n".encode("latin-1"))
    audit = audited(path, tmp_path / "out")
    problems = column(audit, "problem")
    assert [problem is None for problem in problems] == [True, *[False] * 6, True, True, True, False]
    for problem, expected in zip(
        [*problems[1:7], problems[-1]],
        [
            "line 3: the image is missing",
            "damaged.png: the image cannot be decoded",
            "line 5: the caption is empty",
            "line 6: 2 fields where the header has 4",
            "line 7: the id has appeared before",
            "line 8: the id is empty",
            "line 12: not UTF-8",
        ],
        strict=True,
    ):
        assert expected in problem
    unscored = [problem is not None for problem in problems]
    for name in ("match_probability", "is_mismatch", "energy_i2t", "rank_i2t", "fold"):
        assert [value is None for value in column(audit, name)] == unscored
    assert column(audit, "uid")[1:4] == ["x1", "x2", "x3"]  # what the user wrote in such rows is still there
    assert column(audit, "id")[4] is None
    assert audit.summary["pairs"] == 11
    assert audit.summary["scored"] == 4
    assert sum(audit.summary["problems"].values()) == 7
    assert audit.summary["problems"]["the image cannot be read"] == 1
    (scored,) = scorer.scored
    assert list(scored.pair_ids) == ["a", "b", "c", "d"]
    assert list(scored.image_ids) == ["0.png", "1.png", "2.png", "3.png"]  # the damaged one is not among them


def test_the_summary_holds_figures_settings_and_times(tmp_path: Path, scorer) -> None:
    audit = audited(write_table(tmp_path / "data", GOOD), tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary == audit.summary
    assert summary["noise_rate"] == {"estimate": 0.5, "low": 0.0, "high": 1.0}
    assert (summary["pairs"], summary["scored"], summary["mismatches"]) == (4, 4, 2)
    assert summary["expected_precision"] == pytest.approx(0.99)
    assert summary["cutoff"] == {"precision": 0.95}
    assert set(summary["seconds"]) == {"reading", "features", "scoring", "table"}
    assert summary["versions"]["sremkit"] == sremkit.__version__
    assert summary["settings"] == {"seed": 0, "image_encoder": "mean colours", "text_encoder": "lengths"}


def test_the_seed_reaches_the_scorer(tmp_path: Path, scorer) -> None:
    path = write_table(tmp_path / "data", GOOD)
    Audit.from_csv(path, image="file", id="uid").find(tmp_path / "out", seed=3, workers=0)
    assert scorer.settings == ScoringSettings(seed=3)


def test_parquet_keeps_its_types_and_own_columns_with_our_names_are_not_lost(tmp_path: Path, scorer) -> None:
    folder = write_table(tmp_path / "data", GOOD).parent
    own = pa.table(
        {
            "id": [10, 11, 12, 13],
            "path": ["0.png", "1.png", "2.png", "3.png"],
            "caption": ["one", "two", "wrong", "four"],
            "text": ["not the caption"] * 4,
            "fold": [7, 7, 8, 8],
            "tags": [["x"], [], None, ["y", "z"]],
        }
    )
    parquet.write_table(own, folder / "pairs.parquet")
    audit = Audit.from_parquet(folder / "pairs.parquet", text="caption").find(tmp_path / "out", workers=0)
    table = audit.get_issues()
    assert table["id"].to_pylist() == ["10", "11", "12", "13"]
    assert table["text"].to_pylist() == ["one", "two", "wrong", "four"]
    assert table["fold"].to_pylist() == [0, 1, 0, 1]
    assert table["own_id"] == own["id"]
    assert table["own_text"] == own["text"]
    assert table["own_fold"] == own["fold"]
    assert table["tags"] == own["tags"]


def test_all_splits_are_scored_together_and_one_can_be_selected(tmp_path: Path, scorer) -> None:
    rows = [[*row, split] for row, split in zip(GOOD, ["train", "val", "train", "val"], strict=True)]
    path = write_table(tmp_path / "data", rows, header=[*HEADER, "split"])
    everything = audited(path, tmp_path / "all")
    assert column(everything, "id") == ["a", "b", "c", "d"]  # in the user's order, not split by split
    assert column(everything, "split") == ["train", "val", "train", "val"]
    assert column(everything, "is_mismatch") == [False, True, True, False]
    assert len(scorer.scored[0]) == 4
    one = audited(path, tmp_path / "val", split="val")
    assert column(one, "id") == ["b", "d"]
    assert list(scorer.scored[1].pair_ids) == ["b", "d"]


def test_an_id_that_another_split_has_had_is_a_problem_and_not_a_crash(tmp_path: Path, scorer) -> None:
    rows = [[*row, split] for row, split in zip(GOOD, ["train", "val", "train", "val"], strict=True)]
    rows[3][0] = "a"
    path = write_table(tmp_path / "data", rows, header=[*HEADER, "split"])
    audit = audited(path, tmp_path / "out")
    assert column(audit, "uid") == ["a", "b", "c", "a"]
    assert ["appeared before" in (problem or "") for problem in column(audit, "problem")] == [0, 0, 0, 1]


def test_a_folder_tells_of_what_it_left_out(tmp_path: Path, scorer) -> None:
    source = tmp_path / "data"
    for k in range(3):
        write_image(source / f"{k}.png").with_suffix(".txt").write_text(f"caption {k}\nwrong {k}\n")
    write_image(source / "lonely.png")
    audit = Audit.from_folder(source).find(tmp_path / "out", workers=0)
    assert column(audit, "id") == [f"{k}.png#{j}" for k in range(3) for j in range(2)] + [None]
    assert column(audit, "is_mismatch") == [False, True] * 3 + [None]
    assert column(audit, "problem")[-1].endswith("lonely.png: no captions")


def test_shards_say_which_archive_a_pair_lies_in(tmp_path: Path, scorer) -> None:
    for k in range(2):
        write_shard(tmp_path / "shards" / f"{k}.tar", {f"{k}0": "fine", f"{k}1": "wrong"})
    audit = Audit.from_webdataset(tmp_path / "shards").find(tmp_path / "out", workers=0)
    assert column(audit, "id") == ["00", "01", "10", "11"]
    assert [Path(shard).name for shard in column(audit, "shard")] == ["0.tar", "0.tar", "1.tar", "1.tar"]


@pytest.mark.parametrize("content", [karpathy_content, coco_content])
def test_json_files_are_read(tmp_path: Path, scorer, content) -> None:
    for k in range(3):
        write_image(tmp_path / f"{k}.png")
    path = write_json(tmp_path / "captions.json", content({f"{k}.png": ["fine", "wrong"] for k in range(3)}))
    audit = Audit.from_json(path).find(tmp_path / "out", workers=0)
    assert column(audit, "text") == ["fine", "wrong"] * 3
    assert audit.image_of(0).size == (12, 8)


def test_a_run_is_audited_on_the_pairs_it_was_given(tmp_path: Path, scorer) -> None:
    run = tmp_path / "run"
    run.mkdir()
    source = tmp_path / "data"
    for k in range(40):
        write_image(source / f"{k:02d}.png").with_suffix(".txt").write_text(f"caption {k}\n")
    (run / "config.toml").write_text(
        f'name = "small"\n[data]\nsource = "{source}"\n[noise]\nrate = 0.5\nseed = 3\n'
        '[model]\nname = "dual"\n[method]\nname = "srem"\n'
    )
    audit = Audit.from_run(run).find(tmp_path / "out", workers=0)
    given = [f"{image}#0" == pair for image, pair in zip(column(audit, "image"), column(audit, "id"), strict=True)]
    assert 15 <= given.count(False) <= 20  # half of them shuffled, some of those by chance to their own place


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        Audit.from_run(tmp_path)


def test_pairs_in_memory_with_features_need_no_encoder(tmp_path: Path, scorer, monkeypatch) -> None:
    monkeypatch.setattr(FakeImages, "encode", None)
    pairs = read_pairs("scenes", num_scenes=3)
    audit = Audit.from_pairs(pairs).find(tmp_path / "out", workers=0)
    assert column(audit, "id") == list(pairs.pair_ids)
    assert scorer.scored[0].image_features.rows(np.arange(2)).values.ndim == 2  # regions became their mean
    assert audit.summary["settings"]["image_encoder"] == "features as given"


def test_nothing_is_asked_before_it_was_found(tmp_path: Path) -> None:
    audit = Audit.from_embeddings(np.eye(4), np.eye(4))
    with pytest.raises(UserError, match=r"call find\(\) first"):
        audit.get_issues()


def test_mismatches_alone_come_worst_first(tmp_path: Path, scorer) -> None:
    rows = [*GOOD[:3], ["d", "3.png", "very wrong", "x"]]
    audit = audited(write_table(tmp_path / "data", rows), tmp_path / "out")
    assert audit.get_issues(mismatches_only=True)["id"].to_pylist() == ["d", "b", "c"]


def test_images_are_found_by_row_also_where_rows_are_missing(tmp_path: Path, scorer) -> None:
    rows = [["x", "none.png", "not there", "mit"], *GOOD]
    audit = audited(write_table(tmp_path / "data", rows), tmp_path / "out")
    assert audit.image_of(0) is None
    assert [audit.image_of(k).getpixel((10, 6)) for k in (1, 3)] == [(255, 0, 0), (0, 0, 255)]  # red, blue
    (tmp_path / "data" / "0.png").unlink()
    assert audit.image_of(1) is None


def test_importing_the_package_brings_no_audit_along() -> None:
    import subprocess
    import sys

    code = "import sys, sremkit; assert 'sremkit.audit' not in sys.modules; sremkit.Audit"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    with pytest.raises(AttributeError, match="no attribute 'Audti'"):
        _ = sremkit.Audti


def test_the_default_encoders_are_those_of_the_features_extra() -> None:
    encoders = Encoders.default()
    assert "efficientnet-lite2" in encoders.images.description
    assert "MiniLM" in encoders.texts.description


def test_cutoff_rules_are_checked_before_any_work(tmp_path: Path) -> None:
    audit = Audit.from_embeddings(np.eye(4), np.eye(4))
    with pytest.raises(UserError, match="not precision and fraction"):
        audit.find(tmp_path / "out", precision=0.9, fraction=0.1)
    with pytest.raises(UserError, match="fraction must lie between 0 and 1, got 40"):
        audit.find(tmp_path / "out", fraction=40)
    assert not (tmp_path / "out").exists()


def test_a_fraction_flags_the_lowest_scores(tmp_path: Path, scorer) -> None:
    path = write_table(tmp_path / "data", GOOD)
    audit = Audit.from_csv(path, image="file", id="uid").find(tmp_path / "out", workers=0, fraction=0.5)
    assert column(audit, "is_mismatch") == [False, True, True, False]
    assert audit.summary["cutoff"] == {"fraction": 0.5}


def test_a_missing_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"pairs\.csv does not exist; check the spelling"):
        Audit.from_csv(tmp_path / "pairs.csv")
