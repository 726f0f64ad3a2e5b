"""Ridge CCA agrees with loops and with scikit-learn, and weights pairs."""

from __future__ import annotations

import numpy as np
import torch

from made_pairs import make_pairs
from oracles import ridge_cca as oracle
from sremkit.audit.embed import read_vectors
from sremkit.audit.scoring.ridge_cca import (
    IMAGE_RIDGE,
    RIDGE,
    estimate_clean_prob,
    fit_ridge_cca,
    fit_root_cca,
    signed_root,
)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_ridge_cca_finds_the_direction_that_images_and_texts_share() -> None:
    shared = draw(4000, seed=1)
    images, texts = draw(4000, 5, seed=2), draw(4000, 4, seed=3)
    images[:, 2] += 3 * shared
    texts[:, 0] += 3 * shared
    cca = fit_ridge_cca(images, texts, torch.arange(4000), torch.ones(4000), ridge=1e-6, directions=1)
    # All other numbers are noise, so the maps look at these two columns alone.
    assert cca.image_map[:, 0].abs().argmax() == 2
    assert cca.text_map[:, 0].abs().argmax() == 0
    others = [k for k in range(5) if k != 2]
    assert cca.image_map[others, 0].abs().max() < 0.1 * cca.image_map[2, 0].abs()


def test_the_canonical_correlations_are_those_of_scikit_learn() -> None:
    from sklearn.cross_decomposition import CCA

    hidden = draw(600, 3, seed=1)
    images = (hidden @ draw(3, 6, seed=2) + draw(600, 6, seed=3)).double()
    texts = (hidden @ draw(3, 5, seed=4) + draw(600, 5, seed=5)).double()
    cca = fit_ridge_cca(images.float(), texts.float(), torch.arange(600), torch.ones(600), ridge=1e-9, directions=3)
    x = ((images.float() - cca.image_mean) @ cca.image_map).double().numpy()
    y = ((texts.float() - cca.text_mean) @ cca.text_map).double().numpy()
    found = [np.corrcoef(x[:, k], y[:, k])[0, 1] for k in range(3)]
    a, b = CCA(n_components=3, max_iter=5000, tol=1e-10).fit_transform(images.numpy(), texts.numpy())
    expected = [np.corrcoef(a[:, k], b[:, k])[0, 1] for k in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-3)  # theirs is iterative, ours is in float32


def test_ridge_cca_is_the_one_of_the_loops() -> None:
    images, texts = draw(15, 6, seed=1), draw(40, 4, seed=2)
    image_of_text = torch.arange(40).square() % 15  # some images come often, some never
    texts[:, :2] += images[image_of_text][:, :2]
    clean_prob = draw(40, seed=3).sigmoid()
    cca = fit_ridge_cca(images, texts, image_of_text, clean_prob, ridge=0.3, directions=3)
    found = cca.encode_images(images) @ cca.encode_texts(texts).T
    arrays = (a.double().numpy() for a in (images, texts))
    expected = oracle.cosines(*arrays, image_of_text.numpy(), clean_prob.double().numpy(), 0.3, 3)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)  # the covariances are summed in float32


def test_a_weight_of_two_counts_like_two_pairs() -> None:
    images, texts = draw(40, 6, seed=1), draw(60, 4, seed=2)
    image_of_text = torch.arange(60) % 40
    clean_prob = torch.ones(60)
    clean_prob[5] = 2.0
    twice = torch.cat([torch.arange(60), torch.tensor([5])])
    weighted = fit_ridge_cca(images, texts, image_of_text, clean_prob)
    repeated = fit_ridge_cca(images, texts[twice], image_of_text[twice], torch.ones(61))
    first, second = (w.encode_images(images) @ w.encode_texts(texts).T for w in (weighted, repeated))
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)  # float32 sums in another order


def test_a_pair_of_weight_zero_has_no_effect() -> None:
    images, texts = draw(40, 6, seed=1), draw(40, 4, seed=2)
    clean_prob = torch.ones(40)
    clean_prob[3] = 0.0
    before = fit_ridge_cca(images, texts, torch.arange(40), clean_prob)
    texts[3] = 100.0
    after = fit_ridge_cca(images, texts, torch.arange(40), clean_prob)
    torch.testing.assert_close(before.text_map.abs(), after.text_map.abs(), rtol=1e-3, atol=1e-4)


def test_in_a_basis_of_few_images_the_solution_is_the_same() -> None:
    rng = torch.Generator().manual_seed(0)
    images, texts = torch.randn(20, 60, generator=rng), torch.randn(20, 7, generator=rng)
    clean_prob = torch.rand(20, generator=rng)
    small = fit_root_cca(images, texts, torch.arange(20), clean_prob)
    options = {"ridge": IMAGE_RIDGE, "text_ridge": RIDGE}
    large = fit_ridge_cca(signed_root(images), texts, torch.arange(20), clean_prob, **options)
    others, other_texts = torch.randn(5, 60, generator=rng), torch.randn(5, 7, generator=rng)
    in_basis = small.encode_images(others) @ small.encode_texts(other_texts).T
    direct = large.encode_images(signed_root(others)) @ large.encode_texts(other_texts).T
    torch.testing.assert_close(in_basis, direct, rtol=1e-4, atol=1e-5)  # float32


def test_the_signed_root_keeps_signs() -> None:
    assert signed_root(torch.tensor([[4.0, -9.0, 0.0]])).tolist() == [[2.0, -3.0, 0.0]]


def weights(num_images: int) -> tuple[torch.Tensor, np.ndarray]:
    pairs, is_wrong = make_pairs(0.3, num_images=num_images, captions=1, fuzz=0.2)
    v = read_vectors(pairs)
    groups = np.arange(num_images)
    return estimate_clean_prob(v.images, v.texts, v.image_of_text, groups, candidates=100, seed=0), is_wrong


def test_mismatched_pairs_get_less_weight() -> None:
    clean_prob, is_wrong = weights(400)
    assert clean_prob[is_wrong].mean() < 0.3 < 0.7 < clean_prob[~is_wrong].mean()


def test_few_pairs_have_equal_weights() -> None:
    clean_prob, _ = weights(60)
    assert (clean_prob == 1).all()
