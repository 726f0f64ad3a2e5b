"""Every backbone against a slow version that walks through images, captions and words one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import dual, imram, scan, sgraf, vse_infty, vsrn
from small_models import Items, make_items, small_matcher, some_loss, weights_of

# Forward and gradients agree to rounding in float64. Entries of a gradient that cancel to almost nothing have
# no correct digits in either version, so their tolerance is relative to the largest entry of their parameter.
RTOL, GRADIENT_ATOL = 1e-9, 1e-12


def oracle_scan(w: dict, items: Items, o: dict, *, training: bool) -> tuple[Tensor, dict]:
    return scan.logits(w, items.images, items.captions, **o), {}


def oracle_imram(w: dict, items: Items, o: dict, *, training: bool) -> tuple[Tensor, dict]:
    settings = {"direction": "full", "num_steps": 3, "attention_scale": 9.0, "unit_memory": False, **o}
    settings.pop("recompute", None)
    return imram.logits(w, items.images, items.captions, **settings), {}


def oracle_node(module: str) -> Callable[..., tuple[Tensor, dict]]:
    def run(w: dict, items: Items, o: dict, *, training: bool) -> tuple[Tensor, dict]:
        settings = {"statistics_of": o.pop("statistics", "caption"), **o}
        return sgraf.logits(w, items.images, items.captions, module=module, training=training, **settings)

    return run


def oracle_sgraf(w: dict, items: Items, o: dict, *, training: bool) -> tuple[Tensor, dict]:
    both, norms = [], {}
    for module in ("sgr", "saf"):
        own = {key.removeprefix(f"{module}."): t for key, t in w.items() if key.startswith(f"{module}.")}
        logits, moved = sgraf.logits(own, items.images, items.captions, module=module, training=training)
        both.append(logits)
        norms |= {f"{module}.{name}": norm for name, norm in moved.items()}
    return sgraf.mean_logits(*both), norms


def oracle_vsrn(w: dict, items: Items, o: dict, *, training: bool) -> tuple[Tensor, dict]:
    settings = {"num_layers": 2, "unit_projection": False, "last_norm": True, **o}
    return vsrn.logits(w, items.images, items.captions, training=training, **settings)


def oracle_vse(w: dict, items: Items, o: dict, *, training: bool) -> tuple[Tensor, dict]:
    return vse_infty.logits(w, items.images, items.captions, position_dim=4, training=training)


def oracle_dual(w: dict, items: Items, o: dict, *, training: bool) -> tuple[Tensor, dict]:
    return dual.logits(w, items.images, items.sentences), {}


@dataclass
class Case:
    backbone: str
    oracle: Callable[..., tuple[Tensor, dict]]
    options: dict[str, Any]
    oracle_options: dict[str, Any]  # in addition to the options


def scan_case(backbone: str, aggregation: str, attention_scale: float, aggregation_scale: float) -> Case:
    oracle_options = {
        "t2i": backbone == "scan-t2i",
        "attention_scale": attention_scale,
        "aggregation_scale": aggregation_scale,
    }
    return Case(backbone, oracle_scan, {"aggregation": aggregation}, oracle_options)


CASES = {
    "scan-t2i-logsumexp": scan_case("scan-t2i", "logsumexp", 9.0, 6.0),
    "scan-t2i-mean": scan_case("scan-t2i", "mean", 9.0, 6.0),
    "scan-i2t-logsumexp": scan_case("scan-i2t", "logsumexp", 4.0, 5.0),
    "scan-i2t-mean": scan_case("scan-i2t", "mean", 4.0, 5.0),
    "imram-full": Case("imram", oracle_imram, {}, {}),
    "imram-text": Case("imram", oracle_imram, {"direction": "text", "num_steps": 2, "attention_scale": 11.0}, {}),
    "imram-image-one-step": Case("imram", oracle_imram, {"direction": "image", "num_steps": 1}, {}),
    "imram-unit-memory": Case("imram", oracle_imram, {"unit_memory": True, "recompute": False}, {}),
    "sgr": Case("sgr", oracle_node("sgr"), {}, {}),
    "sgr-one-step": Case("sgr", oracle_node("sgr"), {"num_steps": 1}, {}),
    "saf": Case("saf", oracle_node("saf"), {}, {}),
    "saf-whole-batch": Case("saf", oracle_node("saf"), {"statistics": "batch"}, {}),
    "sgraf": Case("sgraf", oracle_sgraf, {}, {}),
    "vsrn": Case("vsrn", oracle_vsrn, {}, {}),
    "vsrn-coco": Case("vsrn", oracle_vsrn, {"unit_projection": True, "last_norm": False}, {}),
    "vse-infty": Case("vse-infty", oracle_vse, {}, {}),
    "dual": Case("dual", oracle_dual, {}, {}),
}


def assert_gradients_match(matcher: torch.nn.Module, ours: Tensor, oracles: Tensor) -> None:
    named = dict(matcher.named_parameters())
    got = torch.autograd.grad(ours, list(named.values()), allow_unused=True)
    expected = torch.autograd.grad(oracles, list(named.values()), allow_unused=True)
    for name, a, e in zip(named, got, expected, strict=True):
        a = torch.zeros_like(named[name]) if a is None else a
        e = torch.zeros_like(named[name]) if e is None else e
        scale = max(1.0, float(e.abs().max()))
        torch.testing.assert_close(a, e, rtol=RTOL, atol=GRADIENT_ATOL * scale, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_backbone_equals_its_oracle_in_logits_gradients_and_running_estimates(case: Case, training: bool) -> None:
    items = make_items()
    matcher = small_matcher(case.backbone, **case.options).train(training)
    expected, norms = case.oracle(
        weights_of(matcher), items, {**case.options, **case.oracle_options}, training=training
    )
    logits = matcher(items.batch())  # after the oracle: it moves the running estimates
    torch.testing.assert_close(logits, expected, rtol=RTOL, atol=1e-13)
    assert_gradients_match(matcher, some_loss(logits), some_loss(expected))
    buffers = dict(matcher.named_buffers())
    for name, norm in norms.items():
        torch.testing.assert_close(buffers[f"{name}.running_mean"], norm.running_mean, rtol=RTOL, atol=1e-13)
        torch.testing.assert_close(buffers[f"{name}.running_var"], norm.running_var, rtol=RTOL, atol=1e-13)


def test_running_estimates_are_compared_and_do_move() -> None:
    """Guards the test above: it would pass without a look if no norm were found or none moved."""
    items, matcher = make_items(), small_matcher("sgraf").train()
    before = {name: buffer.clone() for name, buffer in matcher.named_buffers()}
    matcher(items.batch())
    moved = {name for name, buffer in matcher.named_buffers() if not torch.equal(buffer, before[name])}
    assert len(moved) == len(before) == 10  # mean and variance of 2 norms in SGR and 3 in SAF


@pytest.mark.parametrize("max_words", [60, 4])
def test_captioning_loss_equals_its_oracle(max_words: int) -> None:
    items = make_items()
    matcher = small_matcher("vsrn", caption_weight=0.7, max_caption_words=max_words).train()
    w = weights_of(matcher)
    regions, _ = vsrn.related_regions(w, items.images, num_layers=2, unit_projection=False, training=True)
    expected = 0.7 * vsrn.captioning_loss(w, regions, items.captions, max_words=max_words)
    logits, losses = matcher.logits_and_losses(items.batch())
    assert set(losses) == {"captioning"}
    torch.testing.assert_close(losses["captioning"], expected, rtol=RTOL, atol=0)
    assert_gradients_match(matcher, losses["captioning"], expected)
    assert logits.shape == (5, 5)


WRONG_TWINS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {}


def wrong_twin(label: str) -> Callable:
    def enter(f: Callable[[], tuple[Tensor, Tensor]]) -> Callable:
        WRONG_TWINS[label] = f
        return f

    return enter


def right_and_wrong(backbone: str, module, name: str, replacement, run) -> tuple[Tensor, Tensor]:
    matcher, items = small_matcher(backbone).train(), make_items()
    w = weights_of(matcher)
    original = getattr(module, name)
    setattr(module, name, replacement)
    try:
        wrong = run(w, items)
    finally:
        setattr(module, name, original)
    return matcher(items.batch()), wrong


def _sgraf(kind: str):
    return lambda w, items: sgraf.logits(w, items.images, items.captions, module=kind, training=True)[0]


def _scan(w: dict, items: Items) -> Tensor:
    return scan.logits(
        w, items.images, items.captions,
        t2i=True, attention_scale=9.0, aggregation="logsumexp", aggregation_scale=6.0,
    )  # fmt: skip


@wrong_twin("SCAN without the norm over words")
def _no_norm() -> tuple[Tensor, Tensor]:
    def attention(queries, contexts, scale):
        raw = contexts @ queries.T
        leaky = torch.where(raw > 0, raw, 0.1 * raw)
        return [torch.softmax(scale * leaky[:, q], 0) for q in range(len(queries))]

    return right_and_wrong("scan-t2i", scan, "attention", attention, _scan)


@wrong_twin("SCAN with the norm over regions")
def _other_norm() -> tuple[Tensor, Tensor]:
    def attention(queries, contexts, scale):
        raw = contexts @ queries.T
        leaky = torch.where(raw > 0, raw, 0.1 * raw)
        leaky = leaky / (leaky.norm(dim=0, keepdim=True) + 1e-8)
        return [torch.softmax(scale * leaky[:, q], 0) for q in range(len(queries))]

    return right_and_wrong("scan-t2i", scan, "attention", attention, _scan)


@wrong_twin("SGR whose attended vector is not normalised")
def _not_unit() -> tuple[Tensor, Tensor]:
    def nodes(w, regions, words, image_global, text_global_vector, attention_scale):
        rows = [sgraf.l2(sgraf.linear(w, "global_similarity", (image_global - text_global_vector) ** 2))]
        for word, weights in zip(words, scan.attention(words, regions, attention_scale), strict=True):
            found = scan.attended(weights, regions)
            rows.append(sgraf.l2(sgraf.linear(w, "local_similarity", (found - word) ** 2)))
        return torch.stack(rows)

    return right_and_wrong("sgr", sgraf, "nodes", nodes, _sgraf("sgr"))


@wrong_twin("SAF normalised over the whole batch")
def _whole_batch() -> tuple[Tensor, Tensor]:
    original = sgraf.filter_all
    return right_and_wrong(
        "saf", sgraf, "filter_all", lambda w, n, norm, _: original(w, n, norm, "batch"), _sgraf("saf")
    )


@pytest.mark.parametrize("twin", WRONG_TWINS.values(), ids=WRONG_TWINS.keys())
def test_the_comparison_rejects_a_wrong_twin(twin: Callable[[], tuple[Tensor, Tensor]]) -> None:
    right, wrong = twin()
    with pytest.raises(AssertionError):
        torch.testing.assert_close(right, wrong, rtol=RTOL, atol=1e-13)
