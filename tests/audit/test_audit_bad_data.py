"""Data as they really are: nothing crashes, everything is counted."""

from __future__ import annotations

import csv
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from layouts import image_bytes, write_image, write_tar
from sremkit.audit.audit import Audit
from sremkit.audit.embed import MAX_CHARACTERS
from sremkit.data import images as images_module
from sremkit.errors import DataError

pytest.importorskip("pyarrow")
ODD_CAPTIONS = [
    "<script>alert('x')</script><p>A&nbsp;dog</p>",
    "犬が走っている",
    "كلب يجري على العشب",
    "\U0001f415 \u200d\u202e reversed",
    "a line\nbreak and a\ttab",
    "nul \x00 inside",
    "x" * (MAX_CHARACTERS + 5),
    "ordinary",
]


def write_rows(folder: Path, captions: list[str], *, same_image: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption"])
        for k, caption in enumerate(captions):
            name = "0.png" if same_image else f"{k}.png"
            write_image(folder / name, ("red", "green", "blue")[k % 3])
            writer.writerow([name, caption])
    return folder / "pairs.csv"


def find(path: Path, out: Path, **options) -> Audit:
    return Audit.from_csv(path).find(out, workers=0, **options)


def test_captions_of_every_kind_come_back_as_they_were(tmp_path: Path, scorer) -> None:
    path = write_rows(tmp_path / "data", ODD_CAPTIONS)
    audit = find(path, tmp_path / "out")
    assert audit.get_issues()["caption"].to_pylist() == ODD_CAPTIONS
    assert audit.summary["scored"] == len(ODD_CAPTIONS)
    longest = max(len(text) for text in scorer.scored[0].texts)
    assert longest == MAX_CHARACTERS  # nobody reads further, and the encoder should not either


def test_one_caption_for_a_hundred_images_is_a_group_of_a_hundred(tmp_path: Path, scorer) -> None:
    audit = find(write_rows(tmp_path / "data", ["stock photo"] * 100), tmp_path / "out")
    assert set(audit.get_issues()["duplicate_text_group"].to_pylist()) == {0}
    assert audit.summary["duplicates"]["text"] == 100


def test_one_image_for_all_captions_is_audited(tmp_path: Path, scorer) -> None:
    path = write_rows(tmp_path / "data", [f"caption {k}" for k in range(5)], same_image=True)
    audit = find(path, tmp_path / "out")
    assert audit.summary["scored"] == 5
    assert audit.summary["images"] == 1


@pytest.mark.parametrize(("caption", "flagged"), [("wrong", 6), ("fine", 0)])
def test_all_mismatched_and_none_mismatched_are_both_reported(
    tmp_path: Path, scorer, caption: str, flagged: int
) -> None:
    audit = find(write_rows(tmp_path / "data", [f"{caption} {k}" for k in range(6)]), tmp_path / "out")
    assert audit.summary["mismatches"] == flagged
    assert (audit.summary["expected_precision"] is None) == (flagged == 0)


def test_too_few_pairs_get_a_note_and_no_verdict(tmp_path: Path, scorer) -> None:
    audit = find(write_rows(tmp_path / "data", ["wrong", "fine"]), tmp_path / "out")
    table = audit.get_issues()
    assert table["match_probability"].to_pylist() == [None, None]
    assert table["is_mismatch"].to_pylist() == [None, None]
    assert audit.summary["noise_rate"] is None
    assert audit.summary["scored"] == 0
    assert "too few" in audit.summary["note"]


def test_ranks_flag_no_mismatch(tmp_path: Path, scorer) -> None:
    scorer.rank_only = True
    audit = find(write_rows(tmp_path / "data", ["wrong", "fine", "fine too", "wrong as well"]), tmp_path / "out")
    assert audit.get_issues()["match_probability"].to_pylist() == [0.01, 0.99, 0.99, 0.01]
    assert audit.get_issues()["is_mismatch"].to_pylist() == [False] * 4


@pytest.mark.parametrize(
    ("rule", "flagged"),
    [
        ({"fraction": 0.25}, [True, False, False, False]),  # 1 of 4
        ({"threshold": 0.5}, [True, False, False, True]),
        ({"fraction": 0.0}, [False] * 4),
        ({"precision": 0.5}, [False] * 4),  # nobody knows how many of them are wrong
    ],
)
def test_a_share_or_a_score_that_is_asked_for_holds_for_scores_that_only_order(
    tmp_path: Path, scorer, rule: dict[str, float], flagged: list[bool]
) -> None:
    scorer.rank_only = True
    captions = ["very wrong", "fine", "fine too", "wrong as well"]
    audit = find(write_rows(tmp_path / "data", captions), tmp_path / "out", **rule)
    assert audit.get_issues()["is_mismatch"].to_pylist() == flagged
    assert audit.summary["mismatches"] == sum(flagged)
    assert audit.summary["expected_precision"] is None  # these scores are no probabilities


def test_pairs_without_a_score_are_not_flagged_by_a_threshold(tmp_path: Path, scorer) -> None:
    audit = find(write_rows(tmp_path / "data", ["wrong", "fine"]), tmp_path / "out", threshold=0.9)
    assert audit.summary["mismatches"] == 0


def test_images_of_like_features_are_a_group(tmp_path: Path, scorer) -> None:
    path = write_rows(tmp_path / "data", [f"caption {k}" for k in range(4)])  # red, green, blue, red
    assert find(path, tmp_path / "out").get_issues()["duplicate_image_group"].to_pylist() == [
        0,
        None,
        None,
        0,
    ]


def test_images_beyond_the_pixel_limit_are_refused_and_counted(tmp_path: Path, scorer, monkeypatch) -> None:
    path = write_rows(tmp_path / "data", ["one", "two", "three", "four"])
    write_image(path.parent / "1.png").write_bytes(_large_image())
    monkeypatch.setattr(images_module, "MAX_PIXELS", 1000)
    audit = find(path, tmp_path / "out")
    problems = audit.get_issues()["problem"].to_pylist()
    assert [problem is not None for problem in problems] == [False, True, False, False]
    assert "more than 1,000 pixels" in problems[1]


def _large_image() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (40, 40)).save(buffer, format="PNG")
    return buffer.getvalue()


def test_only_unreadable_images_are_a_user_error(tmp_path: Path, scorer) -> None:
    path = write_rows(tmp_path / "data", ["one", "two"])
    for k in range(2):
        (path.parent / f"{k}.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match="none of the 2 images could be read"):
        find(path, tmp_path / "out")


def test_only_missing_images_are_a_user_error_with_the_count(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("image,text\na.png,one\nb.png,two\n")
    with pytest.raises(DataError, match=r"2 were left out \(the image is missing: 2\), the first because .*line 2"):
        Audit.from_csv(tmp_path / "pairs.csv")


def test_images_on_the_web_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("url,text\nhttps://x.org/a.jpg,one\nhttps://x.org/b.jpg,two\n")
    with pytest.raises(DataError, match="not on this machine; download them"):
        find(tmp_path / "pairs.csv", tmp_path / "out")


def test_a_damaged_shard_gives_what_is_before_the_damage(tmp_path: Path, scorer) -> None:
    members = [part for k in range(12) for part in ((f"{k}.png", image_bytes()), (f"{k}.txt", b"fine"))]
    shard = write_tar(tmp_path / "shards" / "0.tar", members)
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    audit = Audit.from_webdataset(shard.parent).find(tmp_path / "out", workers=0)
    assert 0 < audit.summary["scored"] < 12
    assert audit.summary["problems"] != {}
    assert audit.summary["pairs"] == audit.summary["scored"] + sum(audit.summary["problems"].values())


def test_members_that_lead_out_of_the_folder_write_nothing_there(tmp_path: Path, scorer) -> None:
    members = [("../escaped.png", image_bytes()), ("../escaped.txt", b"wrong")]
    members += [part for k in range(3) for part in ((f"{k}.png", image_bytes()), (f"{k}.txt", b"fine"))]
    shard = write_tar(tmp_path / "shards" / "0.tar", members)
    with tarfile.open(shard, "a") as archive:
        link = tarfile.TarInfo("9.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    before = sorted(tmp_path.rglob("*"))
    audit = Audit.from_webdataset(shard.parent).find(tmp_path / "out", workers=0)
    after = [path for path in sorted(tmp_path.rglob("*")) if (tmp_path / "out") not in (path, *path.parents)]
    assert after == before
    assert audit.summary["scored"] == 4  # read as an image in memory, never unpacked


def test_embeddings_with_numbers_that_are_not_finite_lose_only_those_pairs(tmp_path: Path, scorer) -> None:
    rng = np.random.default_rng(0)
    images, texts = rng.standard_normal((6, 4)), rng.standard_normal((6, 3)).astype(np.float32)
    images[1, 2], texts[4, 0] = np.nan, np.inf
    audit = Audit.from_embeddings(images, texts).find(tmp_path / "out")
    problems = audit.get_issues()["problem"].to_pylist()
    assert [problem is not None for problem in problems] == [False, True, False, False, True, False]
    assert audit.summary["problems"] == {
        "the image features cannot be used": 1,
        "the text features cannot be used": 1,
    }
    assert len(scorer.scored[0]) == 4


def test_embeddings_of_the_same_image_are_one_image(tmp_path: Path, scorer) -> None:
    images = np.repeat(np.random.default_rng(0).standard_normal((3, 4)), 2, axis=0)
    texts = np.random.default_rng(1).standard_normal((6, 2))
    ids = [f"p{k}" for k in range(6)]
    audit = Audit.from_embeddings(images, texts, ids=ids, texts=["fine", "wrong"] * 3).find(tmp_path / "out")
    scored = scorer.scored[0]
    assert scored.image_of_text.tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(scored.image_features.rows(np.arange(3)).values, images[::2].astype(np.float32))
    assert audit.get_issues()["id"].to_pylist() == ids
    assert audit.get_issues()["better_text"].to_pylist() == [None, "fine"] * 3


def test_embeddings_come_from_files_and_never_by_pickle(tmp_path: Path, scorer) -> None:
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.float16))
    np.save(tmp_path / "y.npy", np.eye(4))
    audit = Audit.from_embeddings(tmp_path / "x.npy", tmp_path / "y.npy").find(tmp_path / "out")
    assert audit.get_issues()["text"].to_pylist() == [None] * 4
    np.save(tmp_path / "object.npy", np.array([{"a": 1}] * 4, dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"object\.npy is not a readable \.npy file"):
        Audit.from_embeddings(tmp_path / "object.npy", tmp_path / "y.npy")


def test_embeddings_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are 3 image embeddings for 4 text embeddings"):
        Audit.from_embeddings(np.eye(3), np.eye(4))
    with pytest.raises(DataError, match="there are 2 ids for 3 embeddings"):
        Audit.from_embeddings(np.eye(3), np.eye(3), ids=["a", "b"])
    with pytest.raises(DataError, match="the pair id 'a' appears twice"):
        Audit.from_embeddings(np.eye(3), np.eye(3), ids=["a", "b", "a"])


def test_a_table_with_features_needs_no_images(tmp_path: Path, scorer) -> None:
    (tmp_path / "pairs.csv").write_text("url,text,id\n" + "".join(f"https://x.org/{k},t {k},{k}\n" for k in range(5)))
    for name in ("x", "y"):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(0).standard_normal((5, 3)))
    audit = Audit.from_csv(
        tmp_path / "pairs.csv", image_features=tmp_path / "x.npy", text_features=tmp_path / "y.npy"
    ).find(tmp_path / "out")
    assert audit.summary["scored"] == 5
    assert audit.image_of(0) is None
    assert audit.summary["settings"]["text_encoder"] == "features as given"


def test_other_embeddings_under_the_same_name_are_noticed(tmp_path: Path, scorer) -> None:
    rng = np.random.default_rng(0)
    images, texts = rng.standard_normal((4, 3)), rng.standard_normal((4, 3))
    Audit.from_embeddings(images, texts).find(tmp_path / "out")
    messages: list[str] = []
    Audit.from_embeddings(images, texts + 1e-3).find(tmp_path / "out", notify=messages.append)
    assert len(scorer.scored) == 2
    assert len(messages) == 1
