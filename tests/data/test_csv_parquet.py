"""The delimiter of a table is found in its header."""

from __future__ import annotations

from pathlib import Path

import pytest

from layouts import write_image
from sremkit.cli.main import main
from sremkit.data import read_pairs
from sremkit.data.csv_parquet import TextTable, open_table
from sremkit.errors import DataError


def write(folder: Path, text: str, name: str = "pairs.csv") -> Path:
    write_image(folder / "a.png")
    (folder / name).write_bytes(text.encode())
    return folder / name


@pytest.mark.parametrize(
    "text",
    [
        'image;caption\na.png;"a dog; asleep, or not"\n',
        '\ufeffimage;caption\r\na.png;"a dog; asleep, or not"\r\n',
        '"image";"caption"\n"a.png";"a dog; asleep, or not"\n',
        "image\tcaption\na.png\ta dog; asleep, or not\n",
        '"image"\t"caption, in English"\ta;b\na.png\t"a dog; asleep, or not"\tx\n',
        'image|caption\na.png|"a dog; asleep, or not"\n',
        'image,caption\na.png,"a dog; asleep, or not"\n',
        'image,caption,a;b;c;d\na.png,"a dog; asleep, or not",x\n',
        '"a;b",image,caption\nx,a.png,"a dog; asleep, or not"\n',
    ],
)
def test_csv_files_are_read_with_any_common_delimiter(tmp_path: Path, text: str) -> None:
    options = {"text": "caption, in English"} if "in English" in text else {}
    assert read_pairs(write(tmp_path, text), **options).texts == ["a dog; asleep, or not"]


@pytest.mark.parametrize(("text", "columns"), [('"a;b"\n1\n', ["a;b"]), ("caption\na;b\n", ["caption"])])
def test_one_column_stays_one_column(tmp_path: Path, text: str, columns: list[str]) -> None:
    assert open_table(write(tmp_path, text)).columns == columns


def test_a_separator_that_is_named_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path, "image;x,caption\n1,a dog\n")
    assert open_table(path, delimiter=";").columns == ["image", "x,caption"]
    path = write(tmp_path, "image;caption\n")
    assert open_table(path, delimiter=",").columns == ["image;caption"]
    assert open_table(write(tmp_path, "image;caption\n", "pairs.tsv")).columns == ["image;caption"]


def test_a_text_file_with_tabs_is_a_table(tmp_path: Path) -> None:
    path = write(tmp_path, 'image\tcaption\na.png\ta "dog"\n', "pairs.txt")
    assert read_pairs(path).texts == ['a "dog"']


def test_a_missing_file_or_one_of_another_kind_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_table(tmp_path / "nowhere.csv")
    (tmp_path / "wide.csv").write_text("image;caption\n", encoding="utf-16")
    with pytest.raises(DataError, match="not UTF-8"):
        open_table(tmp_path / "wide.csv")


def test_the_error_for_a_missing_column_names_option_and_keyword(tmp_path: Path, capsys) -> None:
    path = write(tmp_path, "image;words\na.png;a dog\n")
    assert main(["audit", str(path), "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "its columns are: image, words; name one with --text (text= in Python)" in said
    assert "delimiter" not in said  # the columns were told apart


def test_a_row_with_two_faults_does_not_take_the_next_row_along(tmp_path: Path) -> None:
    """After a row that is neither UTF-8 nor well quoted, the next good row was reported as not UTF-8."""
    path = tmp_path / "pairs.csv"
    path.write_bytes(b'image,caption\n"a"b\xe9.png,first\ngood.png,second\n')
    rows = list(TextTable(path, delimiter=",", quoting=True).rows([0, 1]))
    assert [row.problem is None for row in rows] == [False, True]
