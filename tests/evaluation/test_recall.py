"""Recall in both directions: ties, several texts per image, folds, and matrices that make no sense."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import recall as oracle
from sremkit.errors import DataError
from sremkit.evaluation import recall as recall_module
from sremkit.evaluation import retrieval_ranks, retrieval_recall, retrieval_recall_folds

EXACT = {"rel": 1e-12, "abs": 0}


def random_case(seed: int, *, num_images: int = 40, levels: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Scores with right pairs lifted, texts in mixed order, images without a text; few levels force ties."""
    rng = np.random.default_rng(seed)
    image_of_text = rng.integers(0, num_images, size=3 * num_images)
    scores = rng.standard_normal((num_images, len(image_of_text)))
    scores[image_of_text, np.arange(len(image_of_text))] += 1.5
    if levels is not None:
        scores = np.round(scores * levels) / levels
    return scores, image_of_text


@pytest.mark.parametrize("levels", [None, 1, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_recall_matches_the_loop_oracle(seed: int, levels: int | None) -> None:
    scores, image_of_text = random_case(seed, levels=levels)
    expected = oracle.recall(scores.tolist(), image_of_text.tolist())
    got = retrieval_recall(scores, image_of_text)
    assert got == pytest.approx(expected, **EXACT)
    assert list(got) == [
        *("i2t/R@1", "i2t/R@5", "i2t/R@10", "t2i/R@1", "t2i/R@5", "t2i/R@10"),
        *("rsum", "i2t/median_rank", "t2i/median_rank"),
    ]


def test_three_images_with_varying_texts_by_hand() -> None:
    # texts:            a0   a1   b0   c0   c1   c2
    scores = np.array([[0.9, 0.1, 0.5, 0.4, 0.3, 0.2],
                       [0.8, 0.7, 0.3, 0.6, 0.2, 0.1],
                       [0.1, 0.9, 0.8, 0.2, 0.3, 0.7]])  # fmt: skip
    image_of_text = np.array([0, 0, 1, 2, 2, 2])
    # Image a: best own text 0.9, nothing reaches it -> 0. Image b: own 0.3, beaten by 0.8 0.7 0.6 -> 3.
    # Image c: best own 0.7, beaten by 0.9 0.8 -> 2.
    # Texts, down the columns: a0 0.9 beats 0.8 0.1 -> 0; a1 0.1 below 0.7 0.9 -> 2;
    # b0 0.3 below 0.5 0.8 -> 2;
    # c0 0.2 below 0.4 0.6 -> 2; c1 0.3 ties with image a's 0.3, above 0.2 -> 1; c2 0.7 -> 0.
    ranks_i2t, ranks_t2i = retrieval_ranks(scores, image_of_text)
    assert ranks_i2t.tolist() == [0, 3, 2]
    assert ranks_t2i.tolist() == [0, 2, 2, 2, 1, 0]
    got = retrieval_recall(scores, image_of_text, ks=(1, 2, 3))
    # i2t: 1, 1, 2 of 3 images; t2i: 2, 3, 6 of 6 texts.
    # Medians: (0 2 3) -> 2 + 1; (0 0 1 2 2 2) -> floor(1.5) + 1.
    expected = {
        **{"i2t/R@1": 100 / 3, "i2t/R@2": 100 / 3, "i2t/R@3": 200 / 3},
        **{"t2i/R@1": 100 / 3, "t2i/R@2": 50.0, "t2i/R@3": 100.0},
        **{"rsum": 400 / 3 + 100 / 3 + 150.0, "i2t/median_rank": 3.0, "t2i/median_rank": 2.0},
    }
    assert got == pytest.approx(expected, **EXACT)


def test_constant_scores_have_recall_zero() -> None:
    ranks_i2t, ranks_t2i = retrieval_ranks(np.zeros((4, 8)), np.repeat(np.arange(4), 2))
    assert ranks_i2t.tolist() == [6] * 4  # all six texts of other images stand before the image's two
    assert ranks_t2i.tolist() == [3] * 8


def test_texts_of_the_same_image_that_tie_do_not_harm_each_other() -> None:
    scores = np.array([[1.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
    ranks_i2t, _ = retrieval_ranks(scores, np.array([0, 0, 1]))
    assert ranks_i2t.tolist() == [0, 0]


def test_an_image_without_a_text_is_a_candidate_and_no_query() -> None:
    scores = np.array([[0.5, 0.0], [0.9, 0.9], [0.0, 0.8]])
    ranks_i2t, ranks_t2i = retrieval_ranks(scores, np.array([0, 2]))
    assert ranks_i2t.tolist() == [0, 0]  # images 0 and 2
    assert ranks_t2i.tolist() == [1, 1]  # image 1 stands before both


def test_k_beyond_the_number_of_candidates_is_a_full_recall() -> None:
    got = retrieval_recall(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0, 1]), ks=(1, 50))
    assert (got["i2t/R@1"], got["i2t/R@50"], got["t2i/R@1"], got["t2i/R@50"]) == (0.0, 100.0, 0.0, 100.0)


@pytest.mark.parametrize("k", [1, 5, 10])
def test_recall_agrees_with_the_hit_rate_of_torchmetrics(k: int) -> None:
    from torchmetrics.retrieval import RetrievalHitRate

    scores, image_of_text = random_case(7)  # distinct scores: torchmetrics leaves ties to the sort
    right = torch.zeros(scores.shape, dtype=torch.bool)
    right[image_of_text, np.arange(scores.shape[1])] = True
    has_text = right.any(1)
    preds = torch.from_numpy(scores)
    got = retrieval_recall(scores, image_of_text)
    for direction, p, target in (("i2t", preds[has_text], right[has_text]), ("t2i", preds.T, right.T)):
        query = torch.arange(len(p)).unsqueeze(1).expand_as(p)
        expected = RetrievalHitRate(top_k=k)(p.flatten(), target.flatten(), indexes=query.flatten())
        assert 0 < expected < 1, "the case is too easy or too hard to be informative"
        assert got[f"{direction}/R@{k}"] == pytest.approx(100 * expected.item(), rel=1e-5)  # float32 there


def _ties_in_favour(scores: np.ndarray, image_of_text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    right = scores[image_of_text, np.arange(len(image_of_text))]
    best = np.array([right[image_of_text == i].max(initial=-np.inf) for i in range(len(scores))])
    i2t = (scores > best[:, None]).sum(1)[np.unique(image_of_text)]
    return i2t, (scores > right).sum(0)


def _mean_of_the_texts_of_an_image(scores: np.ndarray, image_of_text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    i2t = []
    for i in np.unique(image_of_text):
        wrong = scores[i][image_of_text != i]
        i2t.append(np.mean([(wrong >= own).sum() for own in scores[i][image_of_text == i]]))
    return np.array(i2t), retrieval_ranks(scores, image_of_text)[1]


def _ranks_one_too_high(scores: np.ndarray, image_of_text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    i2t, t2i = retrieval_ranks(scores, image_of_text)
    return i2t + 1, t2i + 1


def _directions_exchanged(scores: np.ndarray, image_of_text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    i2t, t2i = retrieval_ranks(scores, image_of_text)
    return t2i, i2t


WRONG_TWINS = [
    _ties_in_favour,
    _mean_of_the_texts_of_an_image,
    _ranks_one_too_high,
    _directions_exchanged,
]


@pytest.mark.parametrize("twin", WRONG_TWINS, ids=lambda twin: twin.__name__)
def test_the_oracle_rejects_a_wrong_twin(twin, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, image_of_text = random_case(3, levels=4)
    expected = oracle.recall(scores.tolist(), image_of_text.tolist())
    ranks = twin(scores, image_of_text)
    monkeypatch.setattr(recall_module, "retrieval_ranks", lambda *_: ranks)
    assert retrieval_recall(scores, image_of_text) != pytest.approx(expected, **EXACT)


case = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 12), st.sampled_from([None, 1, 3]))
thorough = settings(max_examples=60, deadline=None, derandomize=True)


@thorough
@given(case)
def test_the_order_of_images_and_texts_does_not_matter(case) -> None:
    seed, num_images, levels = case
    scores, image_of_text = random_case(seed, num_images=num_images, levels=levels)
    rng = np.random.default_rng(seed)
    images, texts = rng.permutation(num_images), rng.permutation(len(image_of_text))
    new_number = np.argsort(images)  # image images[k] becomes number k
    shuffled = retrieval_recall(scores[images][:, texts], new_number[image_of_text[texts]])
    assert shuffled == pytest.approx(retrieval_recall(scores, image_of_text), **EXACT)


@thorough
@given(case)
def test_only_the_order_of_the_scores_matters(case) -> None:
    seed, num_images, levels = case
    scores, image_of_text = random_case(seed, num_images=num_images, levels=levels)
    # Ranks of the distinct values: the strictest monotone change, ties stay ties.
    changed = np.unique(scores, return_inverse=True)[1].reshape(scores.shape)
    assert retrieval_recall(changed, image_of_text) == retrieval_recall(scores, image_of_text)
    assert retrieval_recall(3 * scores - 7, image_of_text) == retrieval_recall(scores, image_of_text)


@thorough
@given(case)
def test_raising_a_right_pair_never_lowers_a_recall(case) -> None:
    seed, num_images, levels = case
    scores, image_of_text = random_case(seed, num_images=num_images, levels=levels)
    raised = scores.copy()
    raised[image_of_text[0], 0] += 1.0
    for before, after in zip(
        retrieval_ranks(scores, image_of_text), retrieval_ranks(raised, image_of_text), strict=True
    ):
        assert (after <= before).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_torch_and_numpy_scores_give_the_same(dtype: torch.dtype) -> None:
    scores, image_of_text = random_case(11)
    tensor = torch.from_numpy(scores).to(dtype).requires_grad_()
    expected = retrieval_recall(tensor.detach().double().numpy(), image_of_text)
    assert retrieval_recall(tensor, torch.from_numpy(image_of_text)) == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_scores_may_be_on_a_gpu() -> None:
    scores, image_of_text = random_case(11)
    on_gpu = torch.from_numpy(scores).cuda()
    assert retrieval_recall(on_gpu, torch.from_numpy(image_of_text).cuda()) == retrieval_recall(scores, image_of_text)


def test_half_precision_numpy_scores_rank_as_their_float32_values() -> None:
    scores, image_of_text = random_case(11)
    half = scores.astype(np.float16)
    assert retrieval_recall(half, image_of_text) == retrieval_recall(half.astype(np.float32), image_of_text)


@pytest.mark.parametrize("chunk_elements", [1, 121, 700, 10**9])
def test_the_size_of_a_chunk_does_not_matter(chunk_elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, image_of_text = random_case(5, levels=4)
    expected = retrieval_recall(scores, image_of_text)
    monkeypatch.setattr(recall_module, "CHUNK_ELEMENTS", chunk_elements)
    assert retrieval_recall(scores, image_of_text) == expected


def test_folds_are_the_mean_over_consecutive_blocks_of_images() -> None:
    rng = np.random.default_rng(9)
    image_of_text = rng.permutation(np.repeat(np.arange(30), 3))  # texts of a fold are not neighbours
    scores = rng.standard_normal((30, 90))
    scores[image_of_text, np.arange(90)] += 1
    parts = []
    for start in (0, 10, 20):
        own = [j for j in range(90) if start <= image_of_text[j] < start + 10]
        block = [[scores[i][j] for j in own] for i in range(start, start + 10)]
        parts.append(oracle.recall(block, [int(image_of_text[j]) - start for j in own]))
    expected = {name: sum(part[name] for part in parts) / 3 for name in parts[0]}
    got = retrieval_recall_folds(scores, image_of_text, folds=3)
    assert got == pytest.approx(expected, rel=1e-12)
    six = [got[f"{d}/R@{k}"] for d in ("i2t", "t2i") for k in (1, 5, 10)]
    assert got["rsum"] == pytest.approx(sum(six), rel=1e-12)
    # The slip of much published code must be visible here, or the line above proves nothing.
    assert 2 * sum(six[:3]) != pytest.approx(sum(six), rel=1e-3)
    assert retrieval_recall_folds(torch.from_numpy(scores), image_of_text, folds=3) == got


def test_one_fold_equals_the_whole() -> None:
    scores, image_of_text = random_case(2)
    assert retrieval_recall_folds(scores, image_of_text, folds=1) == retrieval_recall(scores, image_of_text)


def test_images_that_do_not_divide_into_folds_raise() -> None:
    with pytest.raises(DataError, match="7 images cannot be split into 5 folds"):
        retrieval_recall_folds(np.zeros((7, 7)), np.arange(7))


def test_a_fold_without_texts_raises() -> None:
    with pytest.raises(DataError, match=r"images 2 to 3 \(fold 1\) have no text"):
        retrieval_recall_folds(np.zeros((4, 2)), np.array([0, 1]), folds=2)


@pytest.mark.parametrize("recall", [retrieval_recall, retrieval_recall_folds])
def test_nan_raises_with_its_position(recall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall_module, "CHUNK_ELEMENTS", 60)  # rows 6 to 8 are the third chunk
    scores = np.zeros((10, 20))
    scores[8, 13] = np.nan
    with pytest.raises(DataError, match=r"image 8 \(row\) with text 13 \(column\) is NaN"):
        recall(scores, np.repeat(np.arange(10), 2))


def test_infinite_scores_can_be_ranked() -> None:
    ranks_i2t, ranks_t2i = retrieval_ranks(np.array([[np.inf, 0.0], [-np.inf, -np.inf]]), np.array([0, 1]))
    assert (ranks_i2t.tolist(), ranks_t2i.tolist()) == ([0, 1], [0, 1])


@pytest.mark.parametrize(
    ("scores", "image_of_text", "message"),
    [
        (np.zeros((3, 6)), np.zeros(5, dtype=int), "image_of_text has shape"),
        (np.zeros((6, 3)), np.zeros(6, dtype=int), "transposed"),
        (np.zeros((3, 6)), np.full(6, 3), "runs from 3 to 3, but scores has 3 rows"),
        (np.zeros((3, 6)), np.full(6, -1), "runs from -1"),
        (np.zeros(6), np.zeros(6, dtype=int), r"shape \(images, texts\)"),
        (np.zeros((3, 0)), np.zeros(0, dtype=int), "nothing to rank"),
        (np.zeros((3, 6)), np.zeros(6), "integers"),
        (np.zeros((3, 6), dtype=complex), np.zeros(6, dtype=int), "real numbers"),
    ],
)
def test_invalid_inputs_raise(scores, image_of_text, message: str) -> None:
    with pytest.raises(DataError, match=message):
        retrieval_recall(scores, image_of_text)


@pytest.mark.parametrize("ks", [(), (0,), (1, -5), (1.5,)])
def test_an_invalid_k_raises(ks) -> None:
    with pytest.raises(DataError, match="ks must be positive integers"):
        retrieval_recall(np.zeros((2, 2)), np.arange(2), ks=ks)


def test_the_inputs_are_not_modified() -> None:
    scores, image_of_text = random_case(1)
    before = scores.copy(), image_of_text.copy()
    retrieval_recall(scores, image_of_text)
    np.testing.assert_array_equal(scores, before[0])
    np.testing.assert_array_equal(image_of_text, before[1])


COCO_5K = """
import resource, sys, time
import numpy as np
from sremkit.evaluation import retrieval_recall, retrieval_recall_folds
scores = np.random.default_rng(0).standard_normal((5000, 25000), dtype=np.float32)
image_of_text = np.repeat(np.arange(5000), 5)
start = time.perf_counter()
{call}
seconds = time.perf_counter() - start
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.alone
@pytest.mark.parametrize(
    "call", ["retrieval_recall(scores, image_of_text)", "retrieval_recall_folds(scores, image_of_text)"]
)
def test_coco_5k_costs_under_four_seconds_and_two_gigabytes(call: str) -> None:
    done = subprocess.run([sys.executable, "-c", COCO_5K.format(call=call)], capture_output=True, text=True, check=True)
    seconds, gibibytes = map(float, done.stdout.split())
    print(f"{call}: {seconds:.2f} s, {gibibytes:.2f} GiB at the peak")
    assert seconds < 4
    assert gibibytes < 2 * 1e9 / 2**30  # the matrix itself is 0.5 GB
