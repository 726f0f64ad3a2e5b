"""Recorded steps: what is refused, what padding to a few widths changes, and that a replay is a step."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from small_models import make_items, small_matcher, some_loss
from sremkit import ops
from sremkit.config.recipes import TrainingSettings
from sremkit.data import Batches, Pairs
from sremkit.data.batch import Batch
from sremkit.data.features import ArrayFeatures
from sremkit.errors import UserError
from sremkit.methods import METHODS, build_method
from sremkit.models import build_matcher
from sremkit.training import step as loop
from sremkit.training.cuda_graphs import (
    _WORDS,
    GraphedSteps,
    _Graph,
    _without_garbage_collection,
    pad_to_bucket,
    uses_cuda_graphs,
)
from sremkit.training.reporters import Reporter
from sremkit.training.trainer import Trainer
from training import tiny

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def _kernels_where_cuda_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the machines that these tests speak of."""
    monkeypatch.setattr(ops, "has_triton", lambda: True)
    monkeypatch.setattr(ops, "backend", "auto")


def batch_of(words: tuple[int, int], *, known: bool = True) -> Batch:
    """Captions of so many words at least and at most, with their number."""
    batch = make_items(6, words=words).batch()
    return replace(batch, max_total_words=int(batch.word_mask.sum()) if known else None)


@pytest.mark.parametrize(("longest", "width"), [(2, 7), (7, 7), (8, 15), (15, 15), (16, 23)])
def test_with_the_node_of_the_whole_text_the_width_is_a_multiple_of_eight(longest: int, width: int) -> None:
    batch = batch_of((1, longest))
    padded = pad_to_bucket(batch)
    assert padded.words.shape == padded.word_mask.shape == (6, width)
    assert torch.equal(padded.words[:, :longest], batch.words)
    assert torch.equal(padded.word_mask[:, :longest], batch.word_mask)
    assert not padded.words[:, longest:].any()
    assert not padded.word_mask[:, longest:].any()
    assert padded.images is batch.images


@pytest.mark.parametrize(
    ("words", "most"),
    [(1, _WORDS), (_WORDS - 1, _WORDS), (_WORDS, _WORDS), (_WORDS + 1, 2 * _WORDS), (2 * _WORDS, 2 * _WORDS)],
)
def test_the_number_of_words_is_rounded_up_to_a_multiple(words: int, most: int) -> None:
    assert pad_to_bucket(replace(batch_of((1, 5)), max_total_words=words)).max_total_words == most


def test_a_batch_without_words_or_without_their_number_stays_as_it_is() -> None:
    unknown = batch_of((1, 5), known=False)
    assert pad_to_bucket(unknown) is unknown
    sentences = replace(batch_of((1, 5)), words=None, word_mask=None, max_total_words=None)
    assert pad_to_bucket(sentences) is sentences


def test_padding_has_no_influence_on_logits_and_gradients() -> None:
    results = []
    for change in (lambda batch: batch, pad_to_bucket):
        matcher = small_matcher("sgr").train()
        logits = matcher(change(batch_of((2, 9))))
        some_loss(logits).backward()
        results.append([logits.detach(), *(p.grad for p in matcher.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


def test_cuda_graphs_on_the_cpu_are_refused() -> None:
    with pytest.raises(UserError, match=r"needs a CUDA device.*on the CPU.*--set training.device=cuda"):
        tiny.tiny_trainer(cuda_graphs=True)


def refused(method: str = "srem", process: tuple[int, int] = (0, 1), backbone: str = "saf", **settings: object) -> bool:
    made = TrainingSettings(**{"cuda_graphs": True, **settings})
    return not uses_cuda_graphs(made, small_matcher(backbone), build_method(method), process, CUDA)


def test_a_backbone_that_waits_for_the_device_is_refused() -> None:
    with pytest.raises(UserError, match=r"those of clip do; leave training\.cuda_graphs out"):
        refused(backbone="clip")


@pytest.mark.parametrize("backbone", ["saf", "imram", "vsrn"])
def test_without_kernels_a_backbone_with_words_is_refused_with_the_reason(
    backbone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ops.use("plain"):
        with pytest.raises(UserError, match=rf"kernels for {backbone}, and SREMKIT_KERNELS is 'plain'"):
            refused(backbone=backbone)
        assert not refused(backbone="dual")
    monkeypatch.setattr(ops, "has_triton", lambda: False)
    with pytest.raises(UserError, match="and Triton is not installed; change that, or leave"):
        refused(backbone=backbone)


def test_what_has_nothing_around_its_kernels_is_not_compiled_and_captured() -> None:
    with pytest.raises(UserError, match=r"imram has nothing around its kernels.*leave training\.compile out"):
        refused(backbone="imram", compile=True)
    for backbone in ("sgr", "sgraf", "dual"):
        assert not refused(backbone=backbone, compile=True)


@pytest.mark.parametrize(("backbone", "kind"), [("dual", None), ("imram", "imram has nothing around its kernels")])
def test_of_two_networks_their_kind_counts(backbone: str, kind: str | None) -> None:
    member, settings = small_matcher(backbone), TrainingSettings(cuda_graphs=True, compile=True)
    twins = METHODS["ncr"].model(member.name, **member.options)
    with pytest.raises(UserError, match=kind) if kind else nullcontext():
        assert uses_cuda_graphs(settings, twins, build_method("ncr"), (0, 1), CUDA)


@pytest.mark.parametrize("method", [name for name in METHODS if not METHODS[name].supports_cuda_graphs])
def test_a_method_that_decides_during_a_step_is_refused(method: str) -> None:
    with pytest.raises(UserError, match=r"this method decides during a step.*leave training\.cuda_graphs out"):
        refused(method)


def test_methods_that_decide_during_a_step_are_not_captured() -> None:
    without_graphs = [name for name in METHODS if not METHODS[name].supports_cuda_graphs]
    assert sorted(without_graphs) == ["in2r", "l2rm", "mscn", "npc"]


@pytest.mark.parametrize("settings", [{"process": (1, 2)}, {"grad_cache_chunk_size": 8}], ids=str)
def test_what_a_recording_does_not_know_is_refused_by_name(settings: dict) -> None:
    with pytest.raises(UserError, match=r"one process, without training\.grad_cache_chunk_size"):
        refused(**settings)


def test_what_is_left_is_recorded_and_only_where_it_was_asked_for() -> None:
    assert not refused()
    assert refused(cuda_graphs=False, compile=True)


class StandIn:
    """In the place of a CUDA graph: replayed, it does to the captured batch what the step did."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.result = batch, torch.zeros((), dtype=torch.int64)

    def replay(self) -> None:
        self.result.copy_(self.batch.words.sum())


def test_steps_of_a_shape_run_twice_then_are_captured_then_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookkeeping alone, without a device."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    story: list[str] = []

    def eager(_: GraphedSteps, batch: Batch) -> torch.Tensor:
        story.append(f"usual {batch.words.shape[1]}")
        return batch.words.sum()

    def capture(_: GraphedSteps, batch: Batch) -> _Graph:
        story.append(f"capture {batch.words.shape[1]}")
        graph = StandIn(batch)
        return _Graph(graph, batch, graph.result)

    monkeypatch.setattr(GraphedSteps, "_run_eagerly", eager)
    monkeypatch.setattr(GraphedSteps, "_capture", capture)
    steps: GraphedSteps = GraphedSteps(lambda batch: None, torch.device("cpu"))
    for seed, longest in enumerate((5, 12, 5, 6, 5, 12, 12)):  # 6 is as wide as 5 after padding
        batch = make_items(4, seed=seed, words=(1, longest)).batch()
        batch = replace(batch, max_total_words=int(batch.word_mask.sum()))
        assert int(steps(batch)) == int(batch.words.sum())  # of this batch, not of the captured one
    assert story == ["usual 7", "usual 15", "usual 7", "capture 7", "usual 15", "capture 15"]
    steps.reset()
    steps(batch)
    assert story[6:] == ["capture 15"]  # anew, but nothing has to be prepared again
    assert int(steps.eager(batch)) == int(batch.words.sum())
    assert story[7:] == ["usual 15"]
    story.clear()
    steps = GraphedSteps(lambda batch: None, torch.device("cpu"), can_capture=lambda batch: batch.words.shape[1] < 15)
    for longest in (12, 12, 12, 12, 5, 5, 5):
        steps(batch_of((1, longest)))
    assert story == ["usual 15"] * 4 + ["usual 7", "usual 7", "capture 7"]  # what cannot be captured never is


@pytest.mark.parametrize(("precision", "held"), [("float32", (63,)), ("bf16", (63, 70))])
def test_a_trainer_records_what_the_kernels_hold_in_its_format_and_tells_of_the_rest(
    precision: str, held: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(loop, "uses_cuda_graphs", lambda *_: True)
    told: list[str] = []
    reporter = Losses()
    monkeypatch.setattr(reporter, "warn", told.append)
    settings = TrainingSettings(epochs=1, batch_size=16, precision=precision)
    matcher = build_matcher("sgr", image_dim=12, **MODELS["sgr"])
    batches = Batches(lettered_pairs(num_images=20), batch_size=16, vocabulary=Letters())
    trainer = Trainer(matcher, build_method("srem"), batches, settings, device=torch.device("cpu"), reporter=reporter)
    can = trainer.run_step.graphed._can_capture
    for longest in (63, 70, 128, 140):
        assert can(pad_to_bucket(batch_of((1, longest)))) is (longest in held)
    assert len(told) == 1
    assert "longer captions" in told[0]


class NoGraph:
    """In the place of `torch.cuda.graph`, which needs a device."""

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *problem: object) -> None:
        pass


@pytest.fixture
def without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", NoGraph)


@pytest.mark.usefixtures("without_a_device")
def test_no_garbage_is_collected_during_a_capture() -> None:
    found: list[bool] = []
    steps: GraphedSteps = GraphedSteps(lambda batch: found.append(gc.isenabled()), torch.device("cpu"))
    assert gc.isenabled()
    steps._capture(batch_of((2, 5)))
    assert found == [False]
    assert gc.isenabled()


@pytest.mark.usefixtures("without_a_device")
def test_a_step_that_cannot_be_captured_says_what_to_do() -> None:
    def step(batch: Batch) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    steps: GraphedSteps = GraphedSteps(step, torch.device("cpu"))
    with pytest.raises(
        RuntimeError, match=r"could not be captured.*start again, with --set training.cuda_graphs=false"
    ):
        steps._capture(batch_of((2, 5)))
    assert gc.isenabled()


@pytest.mark.usefixtures("without_a_device")
def test_a_recording_writes_into_a_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that were read ahead lie on the device already, and belong to whoever asked for them."""
    monkeypatch.setattr(GraphedSteps, "_run_eagerly", lambda self, batch: batch.words.sum())

    def capture(_: GraphedSteps, batch: Batch) -> _Graph:
        graph = StandIn(batch)
        return _Graph(graph, batch, graph.result)

    monkeypatch.setattr(GraphedSteps, "_capture", capture)
    steps: GraphedSteps = GraphedSteps(lambda batch: None, torch.device("cpu"))
    # As wide as it gets, so that rounding up copies nothing.
    batches = [pad_to_bucket(make_items(4, seed=seed, words=(7, 7)).batch()) for seed in range(4)]
    before = [replace(batch, images=batch.images.clone(), words=batch.words.clone()) for batch in batches]
    for batch in batches:
        steps(batch)
    for batch, as_it_was in zip(batches, before, strict=True):
        assert torch.equal(batch.images, as_it_was.images)
        assert torch.equal(batch.words, as_it_was.words)


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_kept_during_captures_and_then_collected_as_before(collects: bool) -> None:
    was = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        with _without_garbage_collection():
            assert not gc.isenabled()
        assert gc.isenabled() is collects
    finally:
        (gc.enable if was else gc.disable)()


class Letters:
    """A vocabulary in which every letter is a word."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") + 1 for letter in text]


def lettered_pairs(num_images: int = 40, captions: int = 2) -> Pairs:
    """Captions of 1 to 20 words."""
    rng = np.random.default_rng(0)
    num_texts = num_images * captions
    return Pairs(
        name="letters",
        split="train",
        pair_ids=[f"pair-{k}" for k in range(num_texts)],
        texts=["".join(rng.choice(list("abcdef"), size=rng.integers(1, 21))) for _ in range(num_texts)],
        image_of_text=np.repeat(np.arange(num_images), captions),
        image_ids=[str(k) for k in range(num_images)],
        image_features=ArrayFeatures(rng.normal(size=(num_images, 5, 12)).astype(np.float32)),
        text_features=ArrayFeatures(rng.normal(size=(num_texts, 8)).astype(np.float32)),
    )


#: Without dropout: padding would ask for more random numbers.
MODELS = {
    "dual": dict(text_dim=8, hidden_size=16, embed_size=8, dropout=0.0),
    "sgr": dict(vocab_size=10, embed_size=16, word_dim=6, sim_dim=8, num_regions=5, dropout=0.0),
    "scan-t2i": dict(vocab_size=10, embed_size=16, word_dim=6),
    "scan-i2t": dict(vocab_size=10, embed_size=16, word_dim=6),
    "imram": dict(vocab_size=10, embed_size=16, word_dim=6),
    "vse-infty": dict(vocab_size=10, embed_size=16, word_dim=6),
    "vsrn": dict(vocab_size=10, embed_size=16, word_dim=6, caption_size=8, caption_dropout=0.0),
}


class Losses(Reporter):
    """What a run reports: after every step the epoch's mean so far."""

    def __init__(self) -> None:
        self.means: list[float] = []

    def step(self, epoch: int, step: int, steps: int, means: dict[str, float]) -> None:
        self.means.append(means.get("loss", 0.0))

    def epoch(self, row: dict) -> None:
        self.means.append(row["loss"])

    def warn(self, sentence: str) -> None:
        pass


def losses_of_a_run(name: str, device: torch.device, *, graphed: bool) -> tuple[list[float], Trainer]:
    """Six epochs of 6 steps, two of them warm-up; batches are bucketed by length, so widths change.

    The rate is small, because SREM selects pairs: shake the starting weights of SGR by a millionth, and at ten
    times this rate losses change by 14 %; at this one by 4e-5.
    """
    settings = TrainingSettings(
        epochs=4, warmup_epochs=2, decay_after=2, batch_size=16, learning_rate=1e-4, drop_last=True,
        cuda_graphs=graphed, ema_decay=0.9, precision="float32",
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        matcher = build_matcher(name, image_dim=12, **MODELS[name])
    pairs, losses = lettered_pairs(num_images=50), Losses()
    batches = Batches(pairs, batch_size=16, vocabulary=Letters(), drop_last=True, bucket_by_length=True)
    trainer = Trainer(matcher, build_method("srem"), batches, settings, device=device, reporter=losses)
    trainer.run()
    return losses.means, trainer


def test_the_run_that_graphs_are_compared_with_changes_its_widths_and_its_loss() -> None:
    batches = Batches(lettered_pairs(50), batch_size=16, vocabulary=Letters(), bucket_by_length=True)
    widths = {pad_to_bucket(batch).words.shape[1] for epoch in range(2) for batch in batches.epoch(epoch)}
    assert len(widths) > 1
    losses, _ = losses_of_a_run("dual", torch.device("cpu"), graphed=False)
    assert len(losses) == 6 * 6 + 6
    assert np.isfinite(losses).all()
    assert losses[1] != losses[-1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")
@pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::UserWarning:torch")
@pytest.mark.parametrize("name", MODELS)
def test_a_run_with_cuda_graphs_equals_the_eager_run(name: str) -> None:
    usual, _ = losses_of_a_run(name, CUDA, graphed=False)
    found, replayed = losses_of_a_run(name, CUDA, graphed=True)
    graphed = replayed.run_step.graphed
    assert graphed is not None
    assert graphed._graphs  # in the last epoch too, steps were replayed
    # Sums in another order differ in the seventh digit, and training makes more of it.
    np.testing.assert_allclose(found, usual, rtol=1e-3, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")
def test_graphs_of_a_run_that_ended_do_not_disturb_the_next_run() -> None:
    """They lie in a cycle that the first collection destroys, and the step makes enough garbage for one."""

    def step(batch: Batch) -> torch.Tensor:
        for _ in range(5_000):
            cycle: list = []
            cycle.append(cycle)
        return torch.nn.functional.dropout(batch.images.float(), 0.5).sum()

    def ended_run() -> None:
        old: GraphedSteps = GraphedSteps(step, CUDA)
        for _ in range(4):
            old(batch)
        old.itself = old  # type: ignore[attr-defined]

    batch = batch_of((2, 9))
    before = gc.get_threshold()
    gc.set_threshold(500, 1, 1)
    try:
        ended_run()
        steps: GraphedSteps = GraphedSteps(step, CUDA)
        sums = {float(steps(batch)) for _ in range(6)}
    finally:
        gc.set_threshold(*before)
    assert len(sums) == 6  # each replay draws its own dropout
