"""New pairs are scored by the models of a finished audit, without training; the table is documented."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from made_pairs import SMALL, make_pairs
from sremkit.audit import audit as audit_module
from sremkit.audit import score as score_module
from sremkit.audit.audit import Audit
from sremkit.audit.embed import score_pairs
from sremkit.audit.inputs import source_of_embeddings
from sremkit.audit.issues import find_issues
from sremkit.audit.result_table import IDENTITY, VERDICT
from sremkit.audit.score import score_new_pairs
from sremkit.audit.scoring import cross_fit
from sremkit.cli.main import main
from sremkit.errors import DataError, UserError
from sremkit.evaluation import detection_metrics

pytest.importorskip("pyarrow")


@pytest.fixture
def vectors(monkeypatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, texts and which are wrong, of 600 pairs."""
    pairs, is_wrong = make_pairs(0.3, num_images=600)
    monkeypatch.setattr(audit_module, "score_pairs", lambda p, s, **options: score_pairs(p, SMALL, **options))
    images = pairs.image_features.rows(np.asarray(pairs.image_of_text)).values
    return images, pairs.text_features.rows(np.arange(len(pairs))).values, np.asarray(is_wrong)


def test_new_pairs_are_scored_without_training(tmp_path: Path, vectors, monkeypatch, capsys) -> None:
    images, texts, is_wrong = vectors
    old, new = slice(0, 450), slice(450, None)
    audit = Audit.from_embeddings(images[old], texts[old]).find(tmp_path / "audit")
    monkeypatch.setattr(cross_fit, "train_scorers", None)  # a call would fail
    table = score_new_pairs(tmp_path / "audit", source_of_embeddings(images[new], texts[new]))
    score = table["match_probability"].to_numpy()
    assert detection_metrics(is_wrong[new], score)["auroc"] > 0.9
    assert table["is_mismatch"].to_pylist() == (score < audit.summary["threshold"]).tolist()
    # Audited pairs are scored by the model that was not trained on them: nearly as in the audit.
    again = score_new_pairs(tmp_path / "audit", source_of_embeddings(images[old], texts[old]))
    before = audit.get_issues()
    assert again["fold"].to_pylist() == before["fold"].to_pylist()
    difference = again["match_probability"].to_numpy() - before["match_probability"].to_numpy()
    assert np.abs(difference).max() < 1e-3
    for name, array in (("x", images), ("y", texts)):
        np.save(tmp_path / f"{name}.npy", array[new])
    files = ["--image-emb", str(tmp_path / "x.npy"), "--text-emb", str(tmp_path / "y.npy")]
    assert main(["score", str(tmp_path / "audit"), *files, "-o", str(tmp_path / "scored.csv")]) == 0
    with (tmp_path / "scored.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    np.testing.assert_allclose([float(row["match_probability"]) for row in rows], np.sort(score))
    assert f"{len(score):,} rows" in capsys.readouterr().out


def test_a_stage_is_reported_from_its_beginning_on(tmp_path: Path, vectors, monkeypatch) -> None:
    """A first report above 0 would be shown as one that continues earlier work."""
    images, texts, _ = vectors
    Audit.from_embeddings(images, texts).find(tmp_path / "audit")

    def reports_its_first_item(embedded, duplicates, *, has_texts, progress):
        progress("images checked", 1, 600)
        return find_issues(embedded, duplicates, has_texts=has_texts)

    monkeypatch.setattr(score_module, "find_issues", reports_its_first_item)
    reports: list[tuple[str, int]] = []
    source = source_of_embeddings(images[:50], texts[:50])
    score_new_pairs(tmp_path / "audit", source, progress=lambda stage, done, total: reports.append((stage, done)))
    assert [report for report in reports if report[0] == "images checked"] == [
        ("images checked", 0),
        ("images checked", 1),
    ]


def test_other_encoders_and_audits_without_models_are_refused(tmp_path: Path, vectors) -> None:
    images, texts, _ = vectors
    Audit.from_embeddings(images[:450], texts[:450]).find(tmp_path / "audit")
    with pytest.raises(UserError, match="the text vectors have 3 numbers, those of the audit"):
        score_new_pairs(tmp_path / "audit", source_of_embeddings(images[:5], texts[:5, :3]))
    Audit.from_embeddings(images[:30], texts[:30]).find(tmp_path / "small")
    with pytest.raises(DataError, match="kept no models: it had too few pairs"):
        score_new_pairs(tmp_path / "small", source_of_embeddings(images, texts))
    with pytest.raises(DataError, match="holds no finished audit"):
        score_new_pairs(tmp_path, source_of_embeddings(images, texts))


def test_every_column_of_the_table_is_in_the_data_dictionary() -> None:
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    section = page.split("## Data dictionary")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.M) == [*IDENTITY, *VERDICT]
