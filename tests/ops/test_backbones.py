"""Backbones with kernels equal those in plain PyTorch: logits, all gradients, running estimates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from small_models import Items, make_items, small_matcher, some_loss
from sremkit import ops
from sremkit.models import encoding
from sremkit.models.backbones.imram import IterativeMatching
from sremkit.models.backbones.scan import Scan
from sremkit.ops import cross_attention

pytest.importorskip("triton", reason="the kernels need Triton")

pytestmark = pytest.mark.usefixtures("_without_cudnn")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def everything(
    name: str, items: Items, *, backend: str, dtype: torch.dtype, training: bool, half: bool = False
) -> dict[str, Tensor]:
    """Logits, gradients and buffers after one step, in float64."""
    matcher = small_matcher(name).to(DEVICE, dtype).train(training)
    batch = items.batch(name).to(DEVICE)
    batch = replace(batch, images=batch.images.to(dtype))
    with ops.use(backend):
        images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
        with torch.autocast(DEVICE, dtype=torch.float16, enabled=half):
            logits = matcher.compare(images, texts)
        some_loss(logits).backward()
    gradients = {key: p.grad for key, p in matcher.named_parameters()}
    return {
        key: t.detach().double() for key, t in {"logits": logits, **gradients, **dict(matcher.named_buffers())}.items()
    }


def largest_error(found: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The largest difference, as a share of each tensor's largest number, or of 0.01 if that is more."""
    assert found.keys() == right.keys()
    return max(((found[key] - right[key]).abs().max() / right[key].abs().max().clamp_min(0.01)).item() for key in right)


@pytest.mark.parametrize(("name", "training"), [("sgr", True), ("saf", True), ("saf", False), ("sgraf", False)])
def test_a_backbone_with_kernels_equals_the_plain_one(name: str, training: bool) -> None:
    items = make_items()
    right = everything(name, items, backend="plain", dtype=torch.float64, training=training)
    found = everything(name, items, backend="triton", dtype=torch.float32, training=training)
    assert largest_error(found, right) < 1e-4


@pytest.mark.parametrize("name", ["imram", "scan-i2t"])
def test_attention_in_both_directions_with_the_kernel_equals_the_plain_one(name: str) -> None:
    items = make_items()
    right = everything(name, items, backend="plain", dtype=torch.float64, training=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_attention, "attend", None)  # the plain path is not taken
        found = everything(name, items, backend="triton", dtype=torch.float32, training=True)
    assert largest_error(found, right) < 1e-4


@pytest.mark.parametrize("name", ["sgr", "saf", "imram", "scan-i2t"])
@pytest.mark.parametrize("sizes", [{"regions": (1, 1)}, {"words": (1, 1)}, {"words": (1, 30)}], ids=str)
def test_one_region_one_word_and_long_captions(name: str, sizes: dict) -> None:
    items = make_items(3, **sizes)
    right = everything(name, items, backend="plain", dtype=torch.float64, training=False)
    found = everything(name, items, backend="triton", dtype=torch.float32, training=False)
    # A single word is attended to alike whatever IMRAM's memory is: of its gradient only rounding errors are left,
    # which plain PyTorch has as well (3e-4 on a CPU).
    limit = 5e-4 if name == "imram" and sizes == {"words": (1, 1)} else 1e-4
    assert largest_error(found, right) < limit


@pytest.mark.parametrize("name", ["sgr", "saf", "imram"])
def test_half_precision_stays_near_full_precision(name: str) -> None:
    items = make_items()
    right = everything(name, items, backend="plain", dtype=torch.float64, training=False)
    plain, found = (
        everything(name, items, backend=backend, dtype=torch.float32, training=False, half=True)
        for backend in ("plain", "triton")
    )
    # A tiny model's gradients are inaccurate in half precision; not more so with kernels than without.
    assert 1e-3 < largest_error(found, right) < 1.2 * largest_error(plain, right)
    assert (found["logits"] - right["logits"]).abs().max() < 5e-3


def test_captions_too_long_for_the_kernels_take_the_plain_path() -> None:
    items = make_items(3, words=(2, 70))
    with ops.use("triton"):
        matcher, batch = small_matcher("saf", dtype=torch.float32).to(DEVICE), items.batch("saf").to(DEVICE)
        batch = replace(batch, images=batch.images.float())
        chunks = matcher.node_chunks(matcher.encode_images(batch), matcher.encode_texts(batch))
        assert all(nodes.packing is None for nodes, _ in chunks)
    right = everything("saf", items, backend="plain", dtype=torch.float64, training=False)
    found = everything("saf", items, backend="triton", dtype=torch.float32, training=False)
    assert largest_error(found, right) < 1e-4


@pytest.mark.parametrize("name", ["imram", "scan-i2t", "scan-t2i"])
def test_absent_regions_have_no_influence_wherever_they_are(name: str) -> None:
    """Their rows are left out of what is packed, whichever rows these are."""
    items, logits = make_items(3, regions=(5, 5), dtype=torch.float32), []
    matcher = small_matcher(name, dtype=torch.float32).to(DEVICE).eval()
    batch = items.batch(name).to(DEVICE)
    for present in ([0, 1, 3], [4, 1, 3]):
        mask = torch.zeros(3, 5, dtype=torch.bool, device=DEVICE)
        mask[:, present] = True
        images = torch.full_like(batch.images, 7.0)
        images[:, sorted(present)] = batch.images[:, :3]
        with ops.use("triton"), torch.no_grad():
            logits.append(matcher(replace(batch, images=images, region_mask=mask)))
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"direction": "text"},
        {"direction": "image"},
        {"num_steps": 1},
        {"num_steps": 2, "unit_memory": True},
        {"num_steps": 4, "recompute": False},
    ],
    ids=str,
)
def test_imram_of_every_kind_scores_images_and_texts_of_different_number(options: dict) -> None:
    items, scores = make_items(5), []
    for backend, dtype in (("plain", torch.float64), ("triton", torch.float32)):
        matcher = small_matcher("imram", **options).to(DEVICE, dtype).eval()
        batch = items.batch("imram").to(DEVICE)
        with ops.use(backend), torch.no_grad():
            images = matcher.encode_images(replace(batch, images=batch.images.to(dtype)))
            scores.append(matcher.score_all(images[1:3], matcher.encode_texts(batch), text_chunk=2).double())
    assert scores[0].shape == (2, 5)
    torch.testing.assert_close(scores[1], scores[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["scan-t2i", "scan-i2t"])
def test_scan_in_slices_equals_scan_of_all_items(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    items = make_items(5)
    whole = everything(name, items, backend="triton", dtype=torch.float32, training=True)
    for budget in ("CPU_CHUNK", "GPU_CHUNK"):
        monkeypatch.setattr(encoding, budget, 2 * 6 * 7 * 32)
    sizes = []
    score = Scan.score
    monkeypatch.setattr(Scan, "score", lambda self, *x: sizes.append(len(x[2].local)) or score(self, *x))
    found = everything(name, items, backend="triton", dtype=torch.float32, training=True)
    assert largest_error(found, whole) < 1e-5
    assert sum(sizes) == 5
    assert max(sizes) < 5


def test_what_a_text_costs_by_itself_counts_where_few_images_share_it() -> None:
    matcher, batch = small_matcher("imram"), make_items(5).batch("imram")
    images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
    (_, r, d), w = images.local.shape, texts.mask.shape[1]
    with ops.use("triton"), torch.no_grad():
        one, all_of_them = (matcher.float().floats_per_pair(some, texts) for some in (images[:1], images))
    # Its rows, those of the first memories and twice as wide sums of them, and one image's memories: 12 d a word.
    assert one - 8 * r * w == 12 * d * w
    assert all_of_them - 8 * r * w == 12 * d * w // 5


@pytest.mark.parametrize("name", ["imram", "scan-i2t", "scan-t2i"])
def test_repeated_images_and_texts_without_words_are_scored(name: str) -> None:
    items, scores = make_items(3, dtype=torch.float32), []
    again = torch.tensor([0, 0, 1, 1, 2, 2, 2], device=DEVICE)
    matcher = small_matcher(name, dtype=torch.float32).to(DEVICE).eval()
    batch = items.batch(name).to(DEVICE)
    for backend in ("plain", "triton"):
        with ops.use(backend), torch.no_grad():
            images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
            nothing = torch.zeros_like(texts.mask[2])
            texts = replace(texts, mask=torch.stack([texts.mask[0], nothing, texts.mask[2]]))
            texts = replace(texts, local=texts.local.masked_fill(~texts.mask.unsqueeze(2), 0.0))
            scores.append(matcher.score_all(images[again], texts, text_chunk=1))
    torch.testing.assert_close(scores[1], scores[0], rtol=1e-4, atol=1e-5)


def test_imram_in_slices_equals_imram_of_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    items = make_items(5)
    whole = everything("imram", items, backend="triton", dtype=torch.float32, training=True)
    for name in ("CPU_CHUNK", "GPU_CHUNK"):
        monkeypatch.setattr(encoding, name, 2 * 4 * 30 * 16)
    sizes = []
    score = IterativeMatching._score
    monkeypatch.setattr(IterativeMatching, "_score", lambda self, *x: sizes.append(len(x[2].local)) or score(self, *x))
    found = everything("imram", items, backend="triton", dtype=torch.float32, training=True)
    assert largest_error(found, whole) < 1e-5
    assert sorted(sizes) == [2, 2, 2, 2, 3, 3, 3, 3]  # both directions, forward and recomputed


def test_scores_of_all_pairs_with_kernels_equal_the_plain_ones() -> None:
    items = make_items(6, dtype=torch.float32)
    scores = []
    for backend in ("plain", "triton"):
        matcher = small_matcher("sgr", dtype=torch.float32).to(DEVICE).eval()
        batch = items.batch("sgr").to(DEVICE)
        with ops.use(backend), torch.no_grad():
            images, texts = matcher.encode_images(batch), matcher.encode_texts(batch)
            scores.append(matcher.score_all(images, texts, image_chunk=4, text_chunk=5))
    torch.testing.assert_close(scores[1], scores[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "at_least"), [("sgr", 10), ("imram", 8)])
def test_second_derivatives_pass_through_kernels(name: str, at_least: int) -> None:
    items, curvatures = make_items(3), []
    for backend, dtype in (("plain", torch.float64), ("triton", torch.float32)):
        matcher = small_matcher(name).to(DEVICE, dtype).eval()
        batch = items.batch(name).to(DEVICE)
        parameters = [p for key, p in matcher.named_parameters() if "gru" not in key and "embed" not in key]
        with ops.use(backend):
            logits = matcher(replace(batch, images=batch.images.to(dtype)))
        first = torch.autograd.grad(some_loss(logits), parameters, create_graph=True, allow_unused=True)
        length = sum(g.square().sum() for g in first if g is not None)
        curvatures.append(torch.autograd.grad(length, parameters, allow_unused=True))
    compared = 0
    for right, found in zip(*curvatures, strict=True):
        if right is not None and found is not None and right.norm() > 1e-3:
            assert (found.double() - right).norm() / right.norm() < 1e-3
            compared += 1
    assert compared > at_least
