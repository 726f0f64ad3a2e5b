"""Making noise index files: counts are checked, folders are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from sremkit.cli.main import main


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--images", "-3"], "--images is the number of images, 1 or more; got -3"),
        (["--images", "0"], "--images is the number of images, 1 or more; got 0"),
        (["--images", "5", "--captions-per-image", "-1"], "--captions-per-image must be 1 or more, got -1"),
        (["--images", "5", "--seed", "-1"], "--seed must be 0 or more, got -1"),
    ],
)
def test_the_error_for_an_invalid_count_names_its_option(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "new" / "noise.npy"
    assert main(["noise", "make", *options, "-o", str(out)]) == 2
    assert capsys.readouterr().err == f"srem: {message}\n"
    assert not out.parent.exists()


def test_folders_of_the_file_are_made(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "new" / "folder" / "noise.npy"
    assert main(["noise", "make", "--images", "20", "-o", str(out)]) == 0
    assert out.exists()
    assert main(["noise", "inspect", str(out)]) == 0
    assert "per caption" in capsys.readouterr().out


def test_help_states_no_default_where_there_is_none(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["noise", "make", "--help"])
    printed = capsys.readouterr().out
    assert "default: None" not in printed
    assert "(default: 0.4)" in printed


def test_captions_in_another_order_than_their_images_are_described(tmp_path: Path, capsys) -> None:
    """One caption per image, shuffled: the file's length does not determine its format, and the command failed."""
    rows = ["image,caption", *(f"{k}.png,caption {k}" for k in (2, 0, 1, 4, 3, 5))]
    for k in range(6):
        (tmp_path / f"{k}.png").write_bytes(b"")
    table, out = tmp_path / "pairs.csv", tmp_path / "noise.npy"
    table.write_text("\n".join(rows) + "\n")
    options = ["--rate", "0.5", "--protocol", "image", "-o", str(out)]
    assert main(["noise", "make", "--data", str(table), *options]) == 0
    assert "per image" in capsys.readouterr().out
