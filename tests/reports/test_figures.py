"""Bars as high as their counts, in an image that takes its colours from the page."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from sremkit.reports.figures import HEIGHT, LEFT, WIDTH, curves, stacked_histogram


def bars(svg: str) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {}
    for rect in ElementTree.fromstring(svg).iter("rect"):
        place = {key: float(rect.attrib[key]) for key in ("x", "y", "width", "height")}
        found.setdefault(rect.attrib["class"], []).append(place)
    return found


def labels(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter("text")]


def test_bars_stand_on_each_other_and_are_as_high_as_their_counts() -> None:
    # Two bins, [0, 0.5) and [0.5, 1]: three of `a` and one of `b` to the left, two of `b` to the right.
    groups = {"a": np.array([0.1, 0.2, 0.3]), "b": np.array([0.4, 0.6, 1.0])}
    drawn = bars(stacked_histogram(groups, limits=(0, 1), xlabel="x", title="t", bins=2))
    (a,), (b_left, b_right) = drawn["a"], drawn["b"]
    assert a["height"] == pytest.approx(3 * b_left["height"], abs=0.02)  # two decimals are written
    assert b_right["height"] == pytest.approx(2 * b_left["height"], abs=0.02)
    assert b_left["y"] + b_left["height"] == pytest.approx(a["y"], abs=0.02)
    assert b_right["y"] + b_right["height"] == pytest.approx(a["y"] + a["height"], abs=0.02)
    assert a["x"] == b_left["x"] < b_right["x"]
    assert min(a["x"], b_right["x"]) >= LEFT


def test_values_beyond_the_limits_count_in_the_outermost_bars() -> None:
    drawn = bars(stacked_histogram({"a": np.array([-9, 0.5, 99, 99])}, limits=(0, 1), xlabel="", title="", bins=3))
    heights = [bar["height"] for bar in drawn["a"]]
    assert heights == pytest.approx([heights[0], heights[0], 2 * heights[0]], abs=0.02)


def test_axes_are_labelled_with_round_numbers() -> None:
    svg = stacked_histogram({"a": np.full(1234, 0.0)}, limits=(-6.14, 2.66), xlabel="energy", title="")
    assert labels(svg) == ["0", "700", "1,400", "-6", "-4", "-2", "0", "2", "energy"]


@pytest.mark.parametrize("value", [0.0, -3.25, 1e20])
def test_equal_values_and_no_values_are_no_trouble(value: float) -> None:
    drawn = bars(stacked_histogram({"a": np.full(5, value)}, limits=(value, value), xlabel="", title=""))
    assert len(drawn["a"]) == 1
    assert bars(stacked_histogram({"a": np.array([])}, limits=(0, 1), xlabel="", title="")) == {}


def test_everything_stays_inside_and_names_are_escaped() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    svg = stacked_histogram({"a": values}, limits=(-1, 1), xlabel="<x>", title='say "<b>"')
    for bar in bars(svg)["a"]:
        assert 0 <= bar["x"] <= bar["x"] + bar["width"] <= WIDTH
        assert 0 <= bar["y"] <= bar["y"] + bar["height"] <= HEIGHT
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == 'say "<b>"'
    assert labels(svg)[-1] == "<x>"
    assert not re.search(r"#[0-9a-f]{3,6}", svg)  # no colour of its own


def test_curves_take_the_colours_of_axes_and_text_from_the_page() -> None:
    svg = curves({"a": [(1, 2.0), (2, 3.0)]}, xlabel="epoch", ylabel="loss", title="Loss")
    assert svg.startswith("<svg")
    assert "currentColor" in svg
    assert not re.search(r"#000\b|#000000|black", svg)
