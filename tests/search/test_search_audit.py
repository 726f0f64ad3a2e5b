"""Search in a finished audit: its encoders, and a scorer that is trained on the pairs that it kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fake_encoders import FakeImages, FakeSentences
from layouts import write_image
from sremkit.audit.embed import Encoders
from sremkit.cli.main import main
from sremkit.search.index_folder import open_index

NUM_IMAGES = 120
WRONG = range(0, NUM_IMAGES, 6)  # captions of the next image


class ColorSentences(FakeSentences):
    """The colour that a caption states."""

    description = "stated colours"
    dim = 3

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[int(word) for word in text.split()[-3:]] for text in texts], dtype=np.float32) / 255


@pytest.fixture
def colors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Audited images of one colour each, captions that state it, some of another image; the folder is "audit"."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Encoders, "default", classmethod(lambda cls: cls(FakeImages(), ColorSentences())))
    colors = np.random.default_rng(0).integers(0, 256, size=(NUM_IMAGES, 3))
    rows = ["id,file,title"]
    for k, color in enumerate(colors):
        write_image(tmp_path / f"{k}.png", tuple(int(c) for c in color))
        stated = colors[k + 1] if k in WRONG else color
        rows.append(f"p{k},{k}.png,an area of colour {' '.join(map(str, stated))}")
    Path("pairs.csv").write_text("\n".join(rows) + "\n")
    columns = ["--image", "file", "--text", "title", "--id", "id"]
    assert main(["audit", "pairs.csv", *columns, "-o", "audit", "--workers", "0", "--fraction", "0.2"]) == 0
    return colors


def test_an_audit_is_searched_by_a_model_of_its_kept_pairs(colors: np.ndarray, capsys: pytest.CaptureFixture) -> None:
    assert main(["index", "audit"]) == 0
    searcher = open_index(Path("audit"))
    kept = searcher.model.kept  # type: ignore[attr-defined]
    assert kept.sum() == round(0.8 * NUM_IMAGES)
    assert kept[list(WRONG)].sum() <= 2
    capsys.readouterr()
    ranks = []
    for k in (1, 40, 77):
        text = f"an area of colour {' '.join(map(str, colors[k]))}"
        assert main(["search", "audit", text, "-k", "10", "--format", "json"]) == 0
        found = [result["image_id"] for result in json.loads(capsys.readouterr().out)["results"]]
        ranks.append(next((rank for rank, name in enumerate(found, 1) if f"{k}.png" in name), 99))
    assert np.median(ranks) <= 3
