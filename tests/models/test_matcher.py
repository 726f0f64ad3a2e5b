"""Scoring all against all, building by name, and the messages when something is missing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from small_models import SMALL, make_items, small_matcher
from sremkit.errors import DataError, UnknownNameError
from sremkit.models import Encoded, Matcher, build_matcher
from sremkit.models.layers.similarity_nodes import NodeMatcher
from sremkit.models.matcher import block_of


def test_score_all_reports_its_progress_up_to_the_end() -> None:
    matcher, batch, reported = small_matcher("scan-t2i").eval(), make_items(5).batch(), []
    images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    matcher.score_all(images, texts, image_chunk=2, text_chunk=3, progress=lambda done, of: reported.append((done, of)))
    # Texts 3 + 2, each in image blocks of 2, 2, 1: 3·2, 3·4, 3·5, then 15 + 2·2, 15 + 2·4, 15 + 2·5
    assert reported == [(6, 25), (12, 25), (15, 25), (19, 25), (23, 25), (25, 25)]


@pytest.mark.parametrize(
    ("num_images", "pairs", "expected"),
    [
        (1000, 640_000, (500, 1280)),  # square blocks of 800 would leave 200 images to a second row of them
        (1000, 1_280_000, (1000, 1280)),
        (3, 1_000_000, (3, 333_333)),
        (10, 0, (1, 1)),
    ],
)
def test_a_block_holds_its_pairs_with_the_images_in_equal_parts(
    num_images: int, pairs: int, expected: tuple[int, int]
) -> None:
    assert block_of(num_images, pairs=pairs) == expected


@pytest.mark.parametrize("image_chunk", [1, 2, 4, 9])
@pytest.mark.parametrize("text_chunk", [1, 3, 7, 50])
@pytest.mark.parametrize("name", ["dual", "sgr"])
def test_score_all_gives_the_same_in_blocks_of_any_size(name: str, image_chunk: int, text_chunk: int) -> None:
    """Blocks take texts by their lengths, so in another order than they are given."""
    matcher, batch = small_matcher(name).eval(), make_items(7, words=(1, 12)).batch()
    with torch.no_grad():
        images, texts = matcher.encode_images(batch)[:4], matcher.encode_texts(batch)
        whole = matcher.compare(images, texts)
    found = matcher.score_all(images, texts, image_chunk=image_chunk, text_chunk=text_chunk)
    torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-12)


class Products(Matcher):
    """The plainest comparison, on any device."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def compare(self, images: Encoded, texts: Encoded) -> torch.Tensor:
        return self.weight * (images.whole() @ texts.whole().T)


def test_score_all_leaves_its_result_on_the_models_device_only_on_request() -> None:
    images, texts = (Encoded(pooled=torch.ones(n, 3)) for n in (4, 5))
    elsewhere = Products().to("meta")  # a device that knows shapes alone
    options = {"image_chunk": 3, "text_chunk": 2}
    scores = elsewhere.score_all(images, texts, on_device=True, **options)
    assert scores.device.type == "meta"
    assert scores.shape == (4, 5)
    with pytest.raises(NotImplementedError, match="meta"):  # from there nothing comes to the CPU
        elsewhere.score_all(images, texts, **options)
    here = Products()
    assert torch.equal(here.score_all(images, texts, on_device=True), here.score_all(images, texts))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_scores_of_a_model_on_a_gpu_are_moved_to_the_cpu_unless_on_device() -> None:
    matcher, images = Products().cuda(), Encoded(pooled=torch.ones(4, 3))
    assert matcher.score_all(images, images, on_device=True).is_cuda
    assert not matcher.score_all(images, images).is_cuda


def test_taken_items_lose_the_padding_that_none_of_them_needs() -> None:
    lengths = torch.tensor([1, 4, 0, 2])
    mask = torch.arange(5) < lengths.unsqueeze(1)
    encoded = Encoded(torch.arange(40.0).view(4, 5, 2), mask, torch.arange(8.0).view(4, 2), max_total_parts=99)
    rows = torch.tensor([3, 0])
    taken = encoded.take(rows, lengths[rows])
    assert taken.mask.tolist() == [[True, True], [True, False]]
    # Row 3 begins at 3 · 5 · 2 = 30, row 0 at 0.
    assert taken.local.tolist() == [[[30.0, 31.0], [32.0, 33.0]], [[0.0, 1.0], [2.0, 3.0]]]
    assert taken.pooled.tolist() == [[6.0, 7.0], [0.0, 1.0]]
    assert taken.max_total_parts == 3  # words of these, not the bound for all
    assert taken.local.is_contiguous()


def test_taking_a_text_without_words_keeps_a_column() -> None:
    encoded = Encoded(torch.zeros(2, 3, 2), torch.tensor([[True, True, True], [False, False, False]]))
    taken = encoded.take(torch.tensor([1]), torch.tensor([0]))
    assert taken.mask.tolist() == [[False]]
    assert taken.max_total_parts == 0


def test_the_bound_of_the_number_of_parts_is_kept_for_some_items() -> None:
    encoded = Encoded(torch.zeros(4, 5, 2), torch.ones(4, 5, dtype=torch.bool), max_total_parts=20)
    assert encoded[1:3].max_total_parts == 10
    assert replace(encoded, max_total_parts=7)[1:3].max_total_parts == 7
    assert encoded[torch.tensor([0, 0, 1, 1, 2, 2])].max_total_parts == 30  # some come twice
    assert replace(encoded, max_total_parts=None)[1:3].max_total_parts is None


def test_taking_from_items_without_parts_picks_rows() -> None:
    taken = Encoded(pooled=torch.arange(6.0).view(3, 2)).take(torch.tensor([2, 2, 0]), torch.zeros(3))
    assert taken.whole().tolist() == [[4.0, 5.0], [4.0, 5.0], [0.0, 1.0]]
    assert taken.mask is None


@pytest.mark.parametrize(("name", "networks"), [("saf", 1), ("sgr", 1), ("sgraf", 2), ("two-networks", 2)])
def test_kernels_know_the_number_of_words(name: str, networks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else the host waits for the device, and the step cannot be a CUDA graph.
    bounds = []
    monkeypatch.setattr(NodeMatcher, "_packed_words", lambda self, images, texts: bounds.append(texts.max_total_parts))
    member = {"name": "sgr", "options": SMALL["sgr"]}
    matcher = small_matcher(name) if name in SMALL else build_matcher(name, member=member).double()
    matcher(replace(make_items().batch(), max_total_words=77))
    assert bounds == [77] * networks


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


def test_nothing_to_score_is_an_error_with_a_sentence() -> None:
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
        # The scale and bias from similarity to logit are two parameters that SCAN does not have.
        return sum(p.numel() for key, p in matcher.named_parameters() if not key.startswith("to_logit."))

    sgr, saf, scan = COUNTS[vocab_size]
    assert (count("sgr"), count("saf"), count("scan-t2i"), count("scan-i2t")) == (sgr, saf, scan, scan)
    assert count("sgraf") == sgr + saf


def test_the_logit_scale_is_scans_only_addition() -> None:
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
def test_a_batch_that_lacks_something_is_refused_by_name(name: str, field: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        small_matcher(name)(replace(make_items().batch(), **{field: None}))


def test_more_regions_than_built_for_say_how_to_build() -> None:
    batch = make_items(regions=(3, 8)).batch()
    with pytest.raises(DataError, match="8 regions, but the model is built for 7; build it with num_regions=8"):
        small_matcher("saf")(batch)


@pytest.mark.parametrize("name", ["scan-t2i", "dual"])
def test_images_without_a_mask_or_without_regions_are_read(name: str) -> None:
    batch = make_items(regions=(1, 1)).batch()
    matcher = small_matcher(name).eval()
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
    """In one block the affinities alone would be 300 · 300 · 36 · 20 numbers, 260 MB, several times over."""
    run = subprocess.run([sys.executable, "-c", MEASURE.format(name=name)], capture_output=True, text=True, check=True)
    megabytes = int(run.stdout)
    assert megabytes < 150, f"{name} took {megabytes} MB more"
