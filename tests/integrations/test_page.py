"""The code blocks of docs/integrations.md run as they stand, each after the first one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
SECTIONS = PAGE.read_text(encoding="utf-8").split("\n## ")
BLOCKS = {
    f"{section.splitlines()[0]} {number}": code
    for section in SECTIONS
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```", section, re.M | re.S), 1)
}
COMMON, *OTHERS = BLOCKS
NEEDS = {"transformers Trainer 1": "transformers", "Lightning 1": "pytorch_lightning"}


def test_the_page_has_a_block_for_every_adapter() -> None:
    text = PAGE.read_text(encoding="utf-8")
    files = (PAGE.parents[1] / "src" / "sremkit" / "integrations").glob("*.py")
    assert {file.stem for file in files} - {"__init__"} == set(re.findall(r"sremkit\.integrations\.(\w+)", text))
    assert len(OTHERS) >= 10
    named = set(re.findall(r"`(\w+\.py)`", SECTIONS[0]))
    assert named | {"audit_csv.py"} == {file.name for file in (PAGE.parents[1] / "examples").glob("*.py")}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_a_block_runs(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason="an optional package")
    namespace: dict[str, object] = {"__name__": "page"}
    exec(compile(BLOCKS[COMMON], str(PAGE), "exec"), namespace)
    exec(compile(BLOCKS[name], str(PAGE), "exec"), namespace)
