"""Every hostile input of the table gets its sentence: no traceback, no crash, no lost row."""

from __future__ import annotations

import pytest

from hostile.table import GROUPS, AnyCase

pytest.importorskip("pyarrow")
pytest.importorskip("jinja2")

CASES = [
    pytest.param(case, id=f"{group}-{number}") for group, rows in GROUPS.items() for number, case in enumerate(rows)
]


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_input_gets_its_sentence(case: AnyCase) -> None:
    assert case.attempt() == "", str(case)


def test_the_table_only_grows() -> None:
    assert len(CASES) >= 1900
