"""Issues of images: found in examples made by hand."""

from __future__ import annotations

import numpy as np
import pytest


def test_blank_and_tiny_images_are_found() -> None:
    image_module = pytest.importorskip("PIL.Image")
    from sremkit.audit.issues import image_issue

    noise = np.random.default_rng(0).integers(0, 255, (80, 80, 3)).astype(np.uint8)
    gradient = np.repeat(np.linspace(0, 255, 80).astype(np.uint8)[None, :, None], 80, axis=0).repeat(3, axis=2)
    assert image_issue(image_module.fromarray(gradient)) is None
    assert image_issue(image_module.fromarray(gradient[:20])) == "tiny"
    assert image_issue(image_module.new("RGB", (80, 80), "white")) == "blank"
    assert image_issue(image_module.fromarray(250 + noise // 100)) == "blank"  # compression noise on white
