"""The CLIP backbone against the model class of transformers itself."""

from __future__ import annotations

import pytest
import torch

from small_models import SMALL, make_items, small_matcher
from sremkit.errors import DataError
from sremkit.models import build_matcher

transformers = pytest.importorskip("transformers")


def saved_model(folder) -> transformers.CLIPModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.CLIPModel(transformers.CLIPConfig(**SMALL["clip"]["config"]))
    model.save_pretrained(folder)
    return model.eval()


def test_a_saved_model_gives_the_same_logits_but_for_the_bias(tmp_path) -> None:
    model = saved_model(tmp_path)
    matcher = build_matcher("clip", folder=str(tmp_path)).eval()
    items = make_items(dtype=torch.float32)
    items.captions = [[*caption[:-1], 3] for caption in items.captions]  # 3 is the end mark of this model
    batch = items.batch("clip")
    with torch.no_grad():
        expected = model(
            input_ids=batch.words, pixel_values=batch.images, attention_mask=batch.word_mask.long()
        ).logits_per_image
        bias = matcher.to_logit.bias
        torch.testing.assert_close(matcher(batch) - bias, expected, rtol=1e-4, atol=1e-5)
        # exp(2.6592) = 14.28, and a cosine of 0.25 starts at logit 0
        assert bias.item() == pytest.approx(-0.25 * 14.285, rel=1e-3)


def test_a_checkpoint_does_not_need_the_folder(tmp_path) -> None:
    saved_model(tmp_path)
    matcher = build_matcher("clip", folder=str(tmp_path)).eval()
    assert matcher.options["folder"] is None
    again = build_matcher("clip", **matcher.options)
    again.load_state_dict(matcher.state_dict())
    batch = make_items(dtype=torch.float32).batch("clip")
    assert torch.equal(again.eval()(batch), matcher(batch))


def test_neither_or_both_sources_are_refused() -> None:
    with pytest.raises(DataError, match="either folder=, where a model was saved, or config="):
        build_matcher("clip")
    with pytest.raises(DataError, match="either folder="):
        build_matcher("clip", folder="x", config=SMALL["clip"]["config"])


def test_a_folder_without_a_model_is_named(tmp_path) -> None:
    with pytest.raises(DataError, match=r"holds no config\.json"):
        build_matcher("clip", folder=str(tmp_path))


def test_features_in_place_of_pixels_are_refused() -> None:
    with pytest.raises(DataError, match=r"prepared pixels of shape .*, got shape \(5, 6, 10\)"):
        small_matcher("clip")(make_items().batch())


def test_too_long_a_text_is_refused_with_the_limit() -> None:
    with pytest.raises(DataError, match="a text has 30 tokens, but this model reads 24"):
        small_matcher("clip")(make_items(words=(2, 30)).batch("clip"))
