"""Audits of data frames and datasets, and finished audits that are loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit.small_tables import GOOD, HEADER, audited, column, write_table
from layouts import image_bytes
from sremkit.audit.audit import Audit
from sremkit.errors import DataError, UserError

pa = pytest.importorskip("pyarrow")


def test_a_data_frame_is_audited_with_its_columns_and_types(tmp_path: Path, scorer) -> None:
    pandas = pytest.importorskip("pandas")
    write_table(tmp_path / "data", GOOD)
    frame = pandas.DataFrame(GOOD, columns=HEADER).assign(price=[1.5, 2.5, None, 4.5], mixed=[1, "a", None, 2.0])
    frame.loc[3, "file"] = "https://x.org/3.png"
    audit = Audit.from_pandas(frame, image="file", id="uid", image_root=tmp_path / "data").find(
        tmp_path / "out", workers=0
    )
    result = audit.to_pandas()
    assert result["is_mismatch"].tolist() == [False, True, True, None]
    assert result["price"].dropna().tolist() == [1.5, 2.5, 4.5]
    assert result["mixed"].tolist()[:2] == ["1", "a"]
    assert result["problem"][3] == "frame, row 3: the image is a web address"
    assert audit.to_pandas(mismatches_only=True).index.tolist() == [1, 2]
    assert audit.image_of(0).size == (12, 8)
    audit.export(tmp_path / "clean.csv")
    assert (tmp_path / "clean.csv").read_text().splitlines()[1].startswith("a,0.png,a red square,mit,1.5,1,0.99,keep")


def test_a_table_with_some_web_addresses_is_audited_without_them(tmp_path: Path, scorer) -> None:
    rows = [["w", "https://x.org/a.png", "a web image", "x"], *GOOD]
    audit = audited(write_table(tmp_path / "data", rows), tmp_path / "out")
    assert audit.summary["problems"] == {"the image is a web address": 1}
    assert column(audit, "problem")[0].endswith("line 2: the image is a web address")
    assert column(audit, "is_mismatch") == [None, False, True, True, False]


@pytest.fixture
def dataset():
    datasets = pytest.importorskip("datasets")
    images = [{"bytes": image_bytes(color), "path": None} for color in ("red", "green", "red")]
    features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
    columns = {"image": [*images, None], "caption": ["a red square", "wrong", "again red", "no image"]}
    return datasets.Dataset.from_dict(columns, features=features)


def test_a_dataset_with_images_is_audited_and_gets_the_verdicts(tmp_path: Path, scorer, dataset) -> None:
    audit = Audit.from_dataset(dataset).find(tmp_path / "out", workers=0)
    assert column(audit, "image") == ["0", "1", "0", None]  # equal images are one
    assert column(audit, "problem") == [None, None, None, "dataset, row 3: no image"]
    assert audit.image_of(1).getpixel((0, 0)) == (0, 128, 0)
    with_verdicts = audit.add_to_dataset(dataset)
    assert with_verdicts["is_mismatch"][:] == [False, True, False, None]
    assert with_verdicts["match_probability"][:3] == [0.99, 0.01, 0.99]
    assert audit.add_to_dataset(dataset, keep_only=True)["caption"][:] == ["a red square", "again red"]
    with pytest.raises(UserError, match="the audit has 4 rows and the dataset 2"):
        audit.add_to_dataset(dataset.select([0, 1]))


def test_other_images_of_a_dataset_are_another_audit(tmp_path: Path, scorer, dataset) -> None:
    Audit.from_dataset(dataset).find(tmp_path / "out", workers=0)
    changed = dataset.select([1, 0, 2, 3]).remove_columns("caption").add_column("caption", dataset["caption"][:])
    Audit.from_dataset(changed).find(tmp_path / "out", workers=0)
    assert len(scorer.scored) == 2


def test_all_splits_of_a_dataset_are_refused_with_an_example(dataset) -> None:
    with pytest.raises(UserError, match=r"one split of a dataset, such as dataset\['val'\]"):
        Audit.from_dataset({"val": dataset})


def test_a_finished_audit_is_loaded_with_its_images(tmp_path: Path, scorer) -> None:
    path = write_table(tmp_path / "data", GOOD)
    found = audited(path, tmp_path / "out")
    loaded = Audit.load(tmp_path / "out")
    assert loaded.get_issues() == found.get_issues()
    assert loaded.summary == found.summary
    assert loaded.image_of(1).size == (12, 8)
    assert loaded.export(tmp_path / "keep.txt").written == 2
    path.unlink()
    gone = Audit.load(tmp_path / "out")
    assert gone.image_of(1) is None
    assert gone.report().is_file()
    with pytest.raises(DataError, match="holds no finished audit"):
        Audit.load(tmp_path / "data")


def test_the_audit_of_another_input_shows_no_wrong_images(tmp_path: Path, scorer) -> None:
    path = write_table(tmp_path / "data", GOOD)
    audited(path, tmp_path / "out")
    write_table(tmp_path / "data", GOOD[:3])
    with pytest.raises(DataError, match="has changed since the audit: 3 rows, then 4"):
        _ = Audit.load(tmp_path / "out").source


def test_pairs_in_memory_are_loaded_without_images(tmp_path: Path, scorer) -> None:
    Audit.from_embeddings(np.eye(3), np.eye(3), texts=["fine", "wrong", "fine"]).find(tmp_path / "out")
    loaded = Audit.load(tmp_path / "out")
    assert loaded.get_issues(mismatches_only=True)["id"].to_pylist() == ["1"]
    assert loaded.image_of(0) is None
