"""Scoring all against all, building by name, and what is said when something is missing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from small_models import SMALL, make_items, small_matcher
from sremkit.errors import DataError, UnknownNameError
from sremkit.models import Matcher, build_matcher


def test_score_all_reports_its_progress_up_to_the_end() -> None:
    matcher, batch, told = small_matcher("scan-t2i").eval(), make_items(5).batch(), []
    images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    matcher.score_all(
        images, texts, image_chunk=2, text_chunk=3, progress=lambda done, of: told.append((done, of))
    )
    # Texts 3 + 2, each in image blocks of 2, 2, 1: 3·2, 3·4, 3·5, then 15 + 2·2, 15 + 2·4, 15 + 2·5
    assert told == [(6, 25), (12, 25), (15, 25), (19, 25), (23, 25), (25, 25)]


def test_score_all_leaves_every_part_in_the_mode_it_found() -> None:
    matcher, batch = small_matcher("sgraf"), make_items().batch()
    matcher.train()
    matcher.saf.eval()
    before = [part.training for part in matcher.modules()]
    with torch.no_grad():
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    estimates = {name: buffer.clone() for name, buffer in matcher.named_buffers()}
    matcher.score_all(images, texts)
    assert [part.training for part in matcher.modules()] == before
    assert len(set(before)) == 2
    assert all(torch.equal(buffer, estimates[name]) for name, buffer in matcher.named_buffers())


def test_score_all_restores_the_mode_also_when_a_comparison_fails() -> None:
    class Broken(Matcher):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def compare(self, images, texts):
            raise RuntimeError("out of paper")

    broken = Broken().train()
    items = small_matcher("dual").eval().encode_images(make_items().batch())
    with pytest.raises(RuntimeError, match="out of paper"):
        broken.score_all(items, items)
    assert broken.training


def test_nothing_to_score_is_said_in_a_sentence() -> None:
    matcher = small_matcher("dual").eval()
    items = matcher.encode_images(make_items().batch())
    with pytest.raises(DataError, match="nothing to score: 0 images and 5 texts"):
        matcher.score_all(items[:0], items)


COUNTS = {  # vocabulary: (SGR, SAF, SCAN), from the published models
    8481: (18_109_175, 17_517_306, 12_789_420),
    11353: (18_970_775, 18_378_906, 13_651_020),
}


@pytest.mark.parametrize("vocab_size", COUNTS)
def test_parameter_counts_are_the_published_ones(vocab_size: int) -> None:
    def count(name: str) -> int:
        with torch.device("meta"):
            matcher = build_matcher(name, vocab_size=vocab_size, image_dim=2048)
        # Our scale and bias from similarity to logit are two numbers that SCAN does not have.
        return sum(p.numel() for key, p in matcher.named_parameters() if not key.startswith("to_logit."))

    sgr, saf, scan = COUNTS[vocab_size]
    assert (count("sgr"), count("saf"), count("scan-t2i"), count("scan-i2t")) == (sgr, saf, scan, scan)
    assert count("sgraf") == sgr + saf


def test_the_two_numbers_of_the_learned_logit_are_scans_only_addition() -> None:
    matcher = build_matcher("scan-t2i", **SMALL["scan-t2i"])
    own = {key: p.numel() for key, p in matcher.named_parameters() if key.startswith("to_logit.")}
    assert own == {"to_logit.log_scale": 1, "to_logit.bias": 1}


def test_an_unknown_option_is_named_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="'sgr' has no option steps; it takes vocab_size, image_dim"):
        build_matcher("sgr", vocab_size=10, steps=2)


def test_a_missing_option_is_named() -> None:
    with pytest.raises(UnknownNameError, match="'dual' needs the option text_dim"):
        build_matcher("dual", image_dim=3)


@pytest.mark.parametrize(
    ("name", "wrong", "sentence"),
    [
        ("sgr", {"sim_dim": 0}, "sim_dim must be at least 1, got 0"),
        ("scan-t2i", {"aggregation": "max"}, "aggregation must be 'logsumexp' or 'mean', got 'max'"),
        ("imram", {"direction": "both"}, "direction must be 'text', 'image' or 'full', got 'both'"),
    ],
)
def test_a_wrong_value_is_refused_in_a_sentence(name: str, wrong: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_matcher(name, **{**SMALL[name], **wrong})


@pytest.mark.parametrize(
    ("name", "field", "sentence"),
    [
        ("sgr", "images", "holds no image features"),
        ("sgr", "words", "holds no words"),
        ("dual", "sentences", "holds no sentence vectors"),
    ],
)
def test_a_batch_that_lacks_something_says_what(name: str, field: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        small_matcher(name)(replace(make_items().batch(), **{field: None}))


def test_more_regions_than_built_for_say_how_to_build() -> None:
    batch = make_items(regions=(3, 8)).batch()
    with pytest.raises(
        DataError, match="8 regions, but the model is built for 7; build it with num_regions=8"
    ):
        small_matcher("saf")(batch)


def test_images_without_a_mask_or_without_regions_are_read() -> None:
    batch = make_items(regions=(1, 1)).batch()
    matcher = small_matcher("scan-t2i").eval()
    expected = matcher(batch)
    assert torch.equal(matcher(replace(batch, region_mask=None)), expected)
    assert torch.equal(matcher(replace(batch, images=batch.images[:, 0], region_mask=None)), expected)


MEASURE = """
import resource, torch
from sremkit.models import Encoded, build_matcher
torch.manual_seed(0)
sizes = dict(imram=dict(direction="text", num_steps=2), sgr=dict(sim_dim=16), saf=dict(sim_dim=16)).get("{name}", {{}})
matcher = build_matcher("{name}", vocab_size=50, image_dim=8, embed_size=32, word_dim=8, **sizes)
def items(n, length):
    local = torch.nn.functional.normalize(torch.randn(n, length, 32), dim=-1)
    return Encoded(local, torch.ones(n, length, dtype=torch.bool), torch.randn(n, 32))
images, texts = items(300, 36), items(300, 20)
matcher.score_all(images[:2], texts[:2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
matcher.score_all(images, texts, memory_limit=32 << 20)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.alone
@pytest.mark.parametrize("name", ["scan-t2i", "scan-i2t", "sgr", "saf", "imram"])
def test_score_all_keeps_to_its_memory(name: str) -> None:
    """All at once the affinities alone would be 300 · 300 · 36 · 20 numbers, 260 MB, several times over."""
    run = subprocess.run(
        [sys.executable, "-c", MEASURE.format(name=name)], capture_output=True, text=True, check=True
    )
    megabytes = int(run.stdout)
    assert megabytes < 150, f"{name} took {megabytes} MB more"
