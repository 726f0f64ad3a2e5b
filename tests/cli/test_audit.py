"""`srem audit`, `srem export` and `srem train --keep` from the outside."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fake_encoders import FakeImages, FakeSentences
from layouts import write_features, write_image
from sremkit.audit import audit as audit_module
from sremkit.audit.embed import Encoders
from sremkit.cli.main import main
from sremkit.config.aliases import RenamedWarning
from stand_in_scorer import StandInScorer

pytest.importorskip("pyarrow")
pytest.importorskip("jinja2")


@pytest.fixture(autouse=True)
def scorer(monkeypatch: pytest.MonkeyPatch) -> StandInScorer:
    stand_in = StandInScorer()
    monkeypatch.setattr(audit_module, "score_pairs", stand_in)
    monkeypatch.setattr(Encoders, "default", classmethod(lambda cls: Encoders(FakeImages(), FakeSentences())))
    return stand_in


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Eight rows; two are wrong, and the image of one is missing."""
    rows = [["file", "title"], ["none.png", "no image"]]
    for k in range(7):
        write_image(tmp_path / "data" / f"{k}.png", ("red", "green", "blue")[k % 3])
        rows.append([f"{k}.png", "wrong" if k in (2, 5) else f"caption {k}"])
    with (tmp_path / "data" / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return tmp_path / "data" / "pairs.csv"


def audit(table: Path, out: Path, *more: str) -> int:
    return main(["audit", str(table), "--image", "file", "-o", str(out), "--workers", "0", *more])


def test_the_last_screen_shows_findings_and_next_steps(table: Path, tmp_path: Path, capsys) -> None:
    assert audit(table, tmp_path / "out") == 0
    output = capsys.readouterr().out
    assert "pairs: 8 rows, 7 usable pairs" in output
    assert "estimated noise rate: 28.6 % (95 % interval: 0.0 to 100.0)" in output  # 2 of 7
    assert "2 of 7 scored pairs are flagged as mismatches, with an expected precision of 99 %" in output
    assert "1 could not be scored: the image is missing" in output
    assert str(tmp_path / "out" / "report.html") in output
    assert f"srem export {tmp_path / 'out'} -o keep.txt" in output
    assert "srem train RECIPE --keep keep.txt" in output
    assert f"srem export {tmp_path / 'out'} --select all -o verdicts.csv" in output
    for name in ("pairs.parquet", "summary.json", "report.html"):
        assert (tmp_path / "out" / name).is_file()


def test_a_complete_audit_is_reported_as_complete(table: Path, tmp_path: Path, capsys, scorer: StandInScorer) -> None:
    audit(table, tmp_path / "out")
    capsys.readouterr()
    assert audit(table, tmp_path / "out") == 0
    assert "was complete already" in capsys.readouterr().out
    assert len(scorer.scored) == 1


def test_without_flagged_pairs_no_clean_copy_is_offered(
    table: Path, tmp_path: Path, capsys, scorer: StandInScorer
) -> None:
    scorer.rank_only = True
    assert audit(table, tmp_path / "out") == 0
    output = capsys.readouterr().out
    assert "verdicts.csv" not in output
    assert "no pair is flagged as a mismatch" in output
    assert f"srem export {tmp_path / 'out'} --fraction 0.1 -o keep.txt" in output


def test_a_fraction_is_flagged_without_a_noise_rate(table: Path, tmp_path: Path, capsys, scorer: StandInScorer) -> None:
    scorer.rank_only = True
    assert audit(table, tmp_path / "out", "--fraction", "0.3") == 0  # 2 of 7
    output = capsys.readouterr().out
    assert "2 of 7 scored pairs are flagged as mismatches\n" in output  # and nothing on how many really are
    assert "verdicts.csv" in output


def test_no_precision_is_promised_without_a_noise_rate(
    table: Path, tmp_path: Path, capsys, scorer: StandInScorer
) -> None:
    scorer.rank_only = True
    assert audit(table, tmp_path / "out") == 0
    command = ["export", str(tmp_path / "out"), "-o", str(tmp_path / "keep.txt")]
    assert main([*command, "--precision", "0.9"]) == 2
    assert "use --fraction or --threshold" in capsys.readouterr().err
    assert not (tmp_path / "keep.txt").exists()
    assert main([*command, "--fraction", "0.3"]) == 0


def test_without_scores_no_export_is_offered(table: Path, tmp_path: Path, capsys) -> None:
    table.write_text("file,title\n0.png,one\n1.png,two\n")
    assert audit(table, tmp_path / "out") == 0
    assert "srem export" not in capsys.readouterr().out


def test_a_split_of_a_table_without_splits_is_a_user_error(table: Path, tmp_path: Path, capsys) -> None:
    assert audit(table, tmp_path / "out", "--split", "trian") == 2
    assert "has no split column; leave --split away" in capsys.readouterr().err


def test_ctrl_c_keeps_everything_and_explains_how_to_continue(
    table: Path, tmp_path: Path, capsys, scorer: StandInScorer, monkeypatch
) -> None:
    scorer.interrupt = True
    assert audit(table, tmp_path / "out") == 130
    captured = capsys.readouterr()
    assert f"kept in {tmp_path / 'out'}; the same command continues from here" in captured.out
    assert "srem: stopped" in captured.err
    scorer.interrupt = False
    monkeypatch.setattr(FakeImages, "encode", None)
    assert audit(table, tmp_path / "out") == 0


def test_a_changed_input_is_reported(table: Path, tmp_path: Path, capsys) -> None:
    audit(table, tmp_path / "out")
    with table.open("a") as file:
        file.write("0.png,one more\n")
    assert audit(table, tmp_path / "out") == 0
    assert "have changed since the audit" in capsys.readouterr().out


def test_embeddings_need_no_pairs(tmp_path: Path, capsys) -> None:
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(0).standard_normal((6, 4)))
    arrays = ["--image-emb", str(tmp_path / "x.npy"), "--text-emb", str(tmp_path / "y.npy")]
    assert main(["audit", *arrays, "-o", str(tmp_path / "out")]) == 0
    assert "0 of 6 scored pairs are flagged as mismatches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name the pairs to audit"),
        (["--image-emb", "x.npy"], "name the pairs to audit"),
        (["--image-emb", "x.npy", "--text-emb", "y.npy", "--text", "title"], "have no columns, splits or format"),
        (["--image-emb", "x", "--text-emb", "y", "--split", "val", "--sharded"], "have no columns, splits or format"),
        (["pairs.csv", "--run", "runs/x"], "give --run alone"),
        (["nowhere.csv"], "nowhere.csv does not exist"),
        (["--run", "nowhere"], "holds no run"),
    ],
)
def test_mistakes_are_user_errors(arguments: list[str], sentence: str, capsys) -> None:
    assert main(["audit", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_missing_column_is_a_user_error(table: Path, tmp_path: Path, capsys) -> None:
    assert audit(table, tmp_path / "out", "--text", "titel") == 2
    assert "did you mean 'title'?" in capsys.readouterr().err


def test_an_invalid_encoder_is_a_user_error(table: Path, tmp_path: Path, capsys) -> None:
    assert audit(table, tmp_path / "out", "--encoder", str(tmp_path)) == 2
    assert "give the folder of a CLIP or SigLIP model" in capsys.readouterr().err


def test_two_cutoff_rules_are_refused(table: Path, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        audit(table, tmp_path / "out", "--precision", "0.9", "--fraction", "0.1")
    assert "not allowed with argument" in capsys.readouterr().err


def test_export_writes_a_list_and_names_its_use(table: Path, tmp_path: Path, capsys) -> None:
    audit(table, tmp_path / "out")
    keep = tmp_path / "keep.txt"
    assert main(["export", str(tmp_path / "out"), "-o", str(keep)]) == 0
    assert keep.read_text().split() == ["1", "2", "4", "5", "7"]  # row 0 has no image, 3 and 6 are wrong
    output = capsys.readouterr().out
    assert f"{keep}: 5 of 8 rows" in output
    assert f"srem train RECIPE --keep {keep}" in output


def test_export_applies_another_cutoff(table: Path, tmp_path: Path) -> None:
    audit(table, tmp_path / "out")
    clean = tmp_path / "clean.csv"
    choice = ["--format", "csv", "--threshold", "0", "-o", str(clean)]
    assert main(["export", str(tmp_path / "out"), *choice]) == 0
    assert clean.read_text().splitlines()[0] == "file,title,match_probability,verdict,better_text"
    assert len(clean.read_text().splitlines()) == 1 + 7


def test_old_options_of_export_work_and_warn(table: Path, tmp_path: Path) -> None:
    audit(table, tmp_path / "out")
    new, old = tmp_path / "new.csv", tmp_path / "old.csv"
    assert main(["export", str(tmp_path / "out"), "--format", "csv", "--select", "drop", "-o", str(new)]) == 0
    with pytest.warns(RenamedWarning) as warned:
        assert main(["export", str(tmp_path / "out"), "--what", "csv", "--which", "drop", "-o", str(old)]) == 0
    assert [str(w.message).split(";")[0] for w in warned] == [
        "'--what' is now '--format'",
        "'--which' is now '--select'",
    ]
    assert old.read_text() == new.read_text() != ""


RECIPE = """
[data]
source = "{source}"
format = "features"
words = false
[model]
name = "dual"
embed_size = 4
[method]
name = "srem"
"""


def test_training_reads_the_keep_list_and_rewrites_no_data(tmp_path: Path, capsys, monkeypatch) -> None:
    from sremkit.config.recipes import load_recipe
    from sremkit.experiment import prepare

    features = write_features(tmp_path / "features", {"train": 6, "val": 2})
    recipe = tmp_path / "small.toml"
    recipe.write_text(RECIPE.format(source=features))
    (tmp_path / "keep.txt").write_text("pair 1\npair 4\npair 9\n")
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(recipe), "--keep", "keep.txt", "--print-config"]) == 0
    config = capsys.readouterr().out
    assert tomllib.loads(config)["data"]["keep"] == str(tmp_path / "keep.txt")
    (tmp_path / "resolved.toml").write_text(config)
    prepared = prepare(load_recipe(tmp_path / "resolved.toml"))
    assert list(prepared.train.pair_ids) == ["pair 1", "pair 4", "pair 9"]
    assert len(prepared.noise.is_noisy) == 3
    assert len(prepared.val) == 4  # validation stays whole


def test_a_keep_list_of_other_data_is_a_user_error(tmp_path: Path, capsys) -> None:
    features = write_features(tmp_path / "features", {"train": 6, "val": 2})
    recipe = tmp_path / "small.toml"
    recipe.write_text(RECIPE.format(source=features))
    (tmp_path / "keep.txt").write_text("pair 1\nstranger\n")
    arguments = ["train", str(recipe), "--keep", str(tmp_path / "keep.txt"), "-o", str(tmp_path / "run")]
    assert main(arguments) == 2
    assert "1 of the 2 ids" in capsys.readouterr().err


def test_a_resumed_run_keeps_its_list(capsys) -> None:
    assert main(["train", "--resume", "runs/x", "--keep", "keep.txt"]) == 2
    assert "leave --keep, --init and --out away" in capsys.readouterr().err
