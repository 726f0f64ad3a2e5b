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
def test_counts_that_are_none_are_told_by_their_option(
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
