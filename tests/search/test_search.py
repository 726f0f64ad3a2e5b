"""Search in really trained runs: the order and the scores are those of the model itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sremkit.cli.main import main
from sremkit.errors import UserError
from sremkit.evaluation.scoring import score_matrix
from sremkit.experiment import load_best
from sremkit.io import digest
from sremkit.search.index_folder import build_index, open_index
from sremkit.search.output import as_html
from sremkit.search.searcher import Hit, Searcher
from sremkit.training.run_folder import RunFolder


def logits(run: Path, searcher: Searcher) -> torch.Tensor:
    """All images with all captions of the collection, by the evaluation's own code."""
    matcher, vocabulary = load_best(RunFolder.open(run))
    return score_matrix(matcher, searcher.pairs, vocabulary)


def test_a_text_finds_images_in_the_order_of_the_models_logits(run: Path, searcher: Searcher) -> None:
    expected = logits(run, searcher)
    texts = [searcher.pairs.texts[k] for k in (0, 17, 42)]
    for k, hits in zip((0, 17, 42), searcher.search_texts(texts, 5), strict=True):
        scores, images = expected[:, k].topk(5)
        assert [hit.image for hit in hits] == images.tolist()
        np.testing.assert_allclose([hit.score for hit in hits], scores, rtol=1e-4, atol=1e-4)
        assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]


def test_an_image_finds_captions_in_the_order_of_the_models_logits(run: Path, searcher: Searcher) -> None:
    assert searcher.pairs.images is not None
    (hits,) = searcher.search_images([searcher.pairs.images.open(3)], 5)
    best = logits(run, searcher)[3].topk(40).values
    # The image is opened at 192 pixels and reduced to the 96 that its features were computed from.
    np.testing.assert_allclose(hits[0].score, best[0], atol=1.0)
    assert hits[0].texts[0] in searcher.pairs.texts
    assert hits[0].image_id == searcher.pairs.image_ids[hits[0].image]
    assert searcher.pairs.texts[searcher.pairs.pair_ids.index(hits[0].pair_id or "")] == hits[0].texts[0]


def test_a_cross_attention_model_scores_the_candidates(cross_attention_run: Path) -> None:
    whole = build_index(cross_attention_run, candidates=24)
    expected = logits(cross_attention_run, whole)
    (hits,) = whole.search_texts([whole.pairs.texts[7]], 6)
    assert [hit.image for hit in hits] == expected[:, 7].topk(6).indices.tolist()
    assert whole.facts["candidate_recall@10"] == 1.0  # all images are candidates
    few = build_index(cross_attention_run, candidates=10)
    assert 0 < few.facts["candidate_recall@10"] < 1
    (hits,) = few.search_texts([few.pairs.texts[7]], 3)
    np.testing.assert_allclose([hit.score for hit in hits], expected[[hit.image for hit in hits], 7], rtol=1e-4)
    (again,) = open_index(cross_attention_run).search_texts([few.pairs.texts[7]], 3)
    assert again == hits


def test_an_index_of_another_model_is_refused(run: Path, searcher: Searcher, tmp_path: Path) -> None:
    facts = run / "index" / "index.json"
    before = facts.read_text()
    stored = {name: value for name, value in json.loads(before).items() if name != "checksum"}
    try:
        for changed, says in (
            ({"key": "other"}, r"have changed since the index .* was built; build it again"),
            ({"version": "0.0.1"}, r"was built by version 0\.0\.1 of sremkit; build it again"),
        ):
            facts.write_text(json.dumps({**stored, **changed, "checksum": digest({**stored, **changed})}))
            with pytest.raises(UserError, match=says):
                open_index(run)
        facts.write_text(before.replace('"count": 60', '"count": 61'))
        with pytest.raises(UserError, match=r"index\.json is damaged; build the index again"):
            open_index(run)
    finally:
        facts.write_text(before)
    with pytest.raises(UserError, match=r"is neither a run .* nor a finished audit"):
        open_index(tmp_path)


@pytest.mark.parametrize("output", ["table", "json", "html"])
def test_the_command_prints_what_the_searcher_finds(
    run: Path, searcher: Searcher, output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = searcher.pairs.texts[5]
    (hits,) = searcher.search_texts([text], 3)
    out = tmp_path / "out"
    assert main(["search", str(run), text, "-k", "3", "--format", output, "-o", str(out)]) == 0
    content = out.read_text()
    if output == "json":
        found = json.loads(content)
        assert found["query"] == {"text": text}
        assert [result["image_id"] for result in found["results"]] == [hit.image_id for hit in hits]
    else:
        places = [content.index(hit.image_id) for hit in hits]
        assert places == sorted(places)
        assert content.count("data:image/webp") == (3 if output == "html" else 0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give either a text"),
        (["x", "--image", "y.jpg"], "give either a text"),
        (["  "], "the text is empty"),
        (["x", "-k", "0"], "-k must be from 1 to"),
        (["--image", "absent.jpg"], "absent.jpg does not exist"),
    ],
)
def test_mistakes_get_a_sentence(
    run: Path, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(run), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_markup_in_captions_is_shown_as_text() -> None:
    page = as_html("<script>q()</script>", [Hit(1, 2.0, 0, "<b>id</b>", ("<script>x()</script>",))], None)
    assert "<script>" not in page
    assert "&lt;script&gt;x()" in page
