"""Vectors of scenes keep what their patches and captions say."""

from __future__ import annotations

import numpy as np
import pytest

from sremkit.bench.scene_vectors import SceneCaptionVectors, scene_image_vectors
from sremkit.data.generated.scenes import mismatched_scenes

pytest.importorskip("PIL")


def test_images_keep_the_distances_of_their_patches_and_captions_have_unit_length() -> None:
    pairs, _ = mismatched_scenes(40, rate=0.2, subtle_share=0.5, seed=3)
    texts = SceneCaptionVectors(pairs.texts).encode(pairs.texts)
    np.testing.assert_allclose(np.linalg.norm(texts, axis=1), 1, rtol=1e-5)
    images = scene_image_vectors(pairs).astype(np.float64)
    assert images.ndim == 2
    # With 40 images there are no more than 40 components of the patches.
    patches = pairs.image_features.rows(np.arange(40)).values.reshape(40, -1).astype(np.float64)
    far, near = (np.linalg.norm(x[:20] - x[20:], axis=1) for x in (patches, images))
    np.testing.assert_allclose(far / near, far[0] / near[0], rtol=1e-3)
