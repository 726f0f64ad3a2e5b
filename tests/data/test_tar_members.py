"""Members of tar archives are found without extracting; damage is reported."""

from __future__ import annotations

import gzip
import io
import os
import tarfile

import pytest

from layouts import write_tar
from sremkit.data.images import tar_members
from sremkit.data.pairs import Problems
from sremkit.errors import DataError

CONTENTS = [("a.txt", b"first"), ("b/c.txt", b"x" * 700), ("d.txt", b"")]


def test_members_are_found_at_their_offsets(tmp_path):
    path = write_tar(tmp_path / "0.tar", CONTENTS)
    raw = path.read_bytes()
    members = list(tar_members(path, Problems()))
    assert [(m.name, raw[m.offset : m.offset + m.size]) for m in members] == CONTENTS


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_are_read(tmp_path, format):
    name = "x" * 200 + "/späte.txt"
    with tarfile.open(tmp_path / "0.tar", "w", format=format) as archive:
        entry = tarfile.TarInfo(name)
        entry.size = 5
        archive.addfile(entry, io.BytesIO(b"hello"))
    (member,) = tar_members(tmp_path / "0.tar", Problems())
    raw = (tmp_path / "0.tar").read_bytes()
    assert (member.name, raw[member.offset : member.offset + member.size]) == (name, b"hello")


def test_links_and_folders_are_passed_over(tmp_path):
    with tarfile.open(tmp_path / "0.tar", "w") as archive:
        for name, kind in (("folder", tarfile.DIRTYPE), ("soft", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
        archive.addfile(tarfile.TarInfo("file"))
    assert [member.name for member in tar_members(tmp_path / "0.tar", Problems())] == ["file"]


# a.txt takes blocks 0 and 1, b/c.txt blocks 2 to 4, d.txt block 5; then come blocks of zeros.
@pytest.mark.parametrize(
    ("length", "kept"),
    [(100, 0), (512 + 3, 0), (2 * 512, 1), (2 * 512 + 9, 1), (3 * 512 + 600, 1), (6 * 512, 3)],
)
def test_an_archive_cut_off_anywhere_is_noticed(tmp_path, length, kept):
    """tarfile says nothing where the cut falls between members or into a header."""
    path = write_tar(tmp_path / "0.tar", CONTENTS)
    os.truncate(path, length)
    with pytest.raises(DataError, match=r"0\.tar: (cut off|not a readable uncompressed tar archive); copy or make"):
        list(tar_members(path, Problems()))
    problems = Problems("skip")
    assert len(list(tar_members(path, problems))) == kept
    assert problems.skipped().count == 1


def test_damage_in_the_middle_is_noticed(tmp_path):
    """tarfile ends its list at a broken header as if the archive were over."""
    path = write_tar(tmp_path / "0.tar", CONTENTS)
    raw = bytearray(path.read_bytes())
    raw[2 * 512 + 10] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"0\.tar: damaged in the middle"):
        list(tar_members(path, Problems()))
    problems = Problems("skip")
    assert [member.name for member in tar_members(path, problems)] == ["a.txt"]
    assert dict(problems.skipped().reasons) == {"damaged in the middle": 1}


@pytest.mark.parametrize("content", [b"", b"this is no archive" * 100])
def test_what_is_no_archive_is_named(tmp_path, content):
    path = tmp_path / "0.tar"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"0\.tar: not a readable uncompressed tar archive"):
        list(tar_members(path, Problems()))


def test_a_compressed_archive_is_refused_with_the_remedy(tmp_path):
    path = write_tar(tmp_path / "0.tar", CONTENTS)
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(DataError, match=r"not a readable uncompressed tar archive; .*unpack \.gz"):
        list(tar_members(path, Problems()))
