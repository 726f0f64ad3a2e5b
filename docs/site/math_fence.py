"""Formulas of the pages as MathML, written at build time: browsers show them without a script."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def to_mathml(source: str, language: str, css_class: str, options: dict, md: Any, **kwargs: Any) -> str:
    """A fence of LaTeX as MathML, one formula a paragraph."""
    formulas = [formula for formula in source.strip().split("\n\n") if formula.strip()]
    return f'<div class="{css_class}">' + "".join(convert(formula, display="block") for formula in formulas) + "</div>"
