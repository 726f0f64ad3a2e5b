"""Tables in four formats; published numbers have sections of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from sremkit.bench.ablation import PARTS, ablation_cells, ablation_table
from sremkit.bench.efficiency import efficiency_table
from sremkit.bench.methods import method_cells, methods_table
from sremkit.bench.published import published_results
from sremkit.bench.tables import Table
from sremkit.errors import UserError


def row(method: str, rsum: float, *, data: str = "f30k", networks: int = 1, seed: int = 0) -> dict:
    return {"data": data, "backbone": "sgr", "method": method, "rate": 0.4, "seed": seed, "test_rsum": rsum,
            "networks": networks}  # fmt: skip


def test_single_models_ensembles_and_published_numbers_stand_apart() -> None:
    rows = [row("srem", 490.0), row("srem", 492.0, seed=1), row("ncr", 470.0, networks=2)]
    table = methods_table(rows, title="t")
    headings = [heading for heading, _ in table.sections]
    assert headings[0] == "single models"
    assert headings[1] == "ensembles (mean of similarities)"
    source = "published, not measured by us: Dang et al., AAAI 2024 (SREM), table 1, f30k"
    assert [heading for heading in headings if "SREM" in heading] == [
        f"{source}: single models",
        f"{source}: ensembles",
    ]
    assert all(heading.startswith("published, not measured by us: ") for heading in headings[2:])
    single, double = (lines for _, lines in table.sections[:2])
    alone, together = (lines for heading, lines in table.sections if "SREM" in heading)
    assert single == [["sgr", "0.4", "srem", "2", "-", "491.0 ± 1.4"]]  # deviation of 490 and 492: sqrt(2)
    assert double == [["sgr", "0.4", "ncr", "1", "-", "470.0"]]
    assert ["sgraf", "0.4", "srem", "-", "-", "495.4"] in together  # the paper's table 1
    assert [line[0] for line in alone] == ["scan", "vsrn", "imram", "saf", "sgr"]
    assert [line[2].split()[0] for line in together] == ["ncr", "decl", "bicro", "mscn", "rcl", "srem"]
    assert all(line[1] == "0.4" and line[3] == "-" for line in alone + together)
    assert "published sgraf is SAF and SGR trained separately, here saf+sgr" in table.notes[0]


def test_data_without_published_numbers_has_no_such_section() -> None:
    table = methods_table([row("srem", 280.0, data="flickr8k")], title="t")
    assert [heading for heading, _ in table.sections] == ["single models"]
    assert table.notes == []


def test_published_recalls_add_up_to_their_sums() -> None:
    rows = [r for data in ("f30k", "coco", "cc152k") for r in published_results(data)]
    recalls = [k for k in rows[0] if "R@" in k]
    complete = [r for r in rows if r[recalls[0]]]
    assert len(complete) == 33 + 33 + 10 + 6  # of SREM's tables, and of NPC's README
    for r in complete:
        # One row of the source is off by 0.2: MSCN on Flickr30K at 20 %.
        assert sum(float(r[k]) for k in recalls) == pytest.approx(float(r["rsum"]), abs=0.25), r
    assert all(r["source"] for r in rows)
    of_srem = [r for r in published_results("f30k", [0.6]) if "SREM" in r["source"]]
    assert len(of_srem) == 11


def test_every_published_number_says_where_it_was_read() -> None:
    rows = [r for data in ("f30k", "coco", "cc152k") for r in published_results(data)]
    assert {r["read_in"] for r in rows} == {"own paper", "comparison table", "not recorded"}
    sums_only = [r for r in rows if not r["i2t/R@1"]]
    assert {"l2rm", "gsc", "in2r", "cream", "ucpm"} <= {r["method"] for r in sums_only}
    assert all(2 < float(r["rsum"]) <= 600 for r in rows)
    assert len({(r["source"], r["data"], r["noise_rate"], r["method"], r["model"]) for r in rows}) == len(rows)
    (gsc,) = [r for r in rows if (r["data"], r["method"], r["noise_rate"]) == ("f30k", "gsc", "0.6")]
    assert (gsc["rsum"], gsc["read_in"]) == ("478.0", "comparison table")


def test_a_published_sum_without_recalls_is_shown_as_such() -> None:
    table = methods_table([{**row("gsc", 480.0), "test_i2t/R@1": 70.0}], title="t")
    (lines,) = (lines for heading, lines in table.sections if "comparison tables of UCPM" in heading)
    assert ["sgraf", "0.4", "gsc (GSC, CVPR 2024)", "-", "-", "-", "497.3"] in lines


def test_every_format_has_the_same_cells_and_escapes_its_signs(tmp_path: Path) -> None:
    table = Table("a & b", ["name", "x_1"], labels=1)
    table.add_section("50 % <all>", [["p|q", "1 ± 2"], ["i→t", "✓"]])
    for ending, expected in {
        ".md": [r"| p\|q | 1 ± 2 |", "*50 % <all>*"],
        ".tex": [r"x\_1", r"$\pm$", r"50 \% <all>", r"\bottomrule", r"i$\to$t & $\checkmark$ \\"],
        ".html": ["<td>p|q</td>", "50 % &lt;all&gt;", "<title>a &amp; b</title>"],
        ".txt": ["p|q   1 ± 2"],
    }.items():
        table.write(tmp_path / f"t{ending}")
        text = (tmp_path / f"t{ending}").read_text(encoding="utf-8")
        assert all(part in text for part in expected), text
        assert ending != ".tex" or text.isascii()
    with pytest.raises(UserError, match=r"ends in '.pdf'; tables are written as .md"):
        table.write(tmp_path / "t.pdf")
    with pytest.raises(ValueError, match="3 cells in a table of 2 columns"):
        table.add_section("x", [["1", "2", "3"]])


def test_a_method_without_a_recipe_takes_srems_with_its_own_defaults() -> None:
    cells = method_cells("f30k:/data/f30k", ["sgr"], ["srem", "rcl"], [0.6], [3])
    (_, srem), (labels, rcl) = cells
    assert labels == {
        "data": "f30k", "backbone": "sgr", "method": "rcl", "rate": 0.6, "seed": 3,
        "recipe": "f30k-sgr-srem", "adapted": True,
    }  # fmt: skip
    assert rcl.name == "f30k-sgr-rcl"
    assert rcl.method == {"name": "rcl"}
    assert rcl.data.source == "/data/f30k"
    assert (rcl.training, rcl.model, rcl.noise) == (srem.training, srem.model, srem.noise)
    ((_, changed),) = method_cells("f30k", ["sgr"], ["rcl"], [0.6], [3], overrides=["method.power=0.1"])
    assert changed.method == {"name": "rcl", "power": 0.1}


def test_the_ablation_adds_one_part_at_a_time() -> None:
    cells = ablation_cells("scenes-srem", [0.4], [0, 1])
    assert [sum(labels[part] for part in PARTS) for labels, _ in cells] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert all(recipe.method[part] == labels[part] for labels, recipe in cells for part in PARTS)
    rows = [{**labels, "test_rsum": 100.0 + labels["seed"]} for labels, _ in cells]
    measured, published = ablation_table(rows).sections
    assert measured[1][2] == ["0.4", "✓", "✓", "", "", "2", "100.5 ± 0.7", "-", "-", "-"]
    assert published[1][0][6] == "323.9"  # 32.5 + 59.5 + 70.0 + 32.5 + 60.7 + 68.7
    assert published[1][4][6] == "372.2"


def test_the_efficiency_table_compares_with_srem() -> None:
    common = {
        "data": "flickr8k",
        "backbone": "dual",
        "device": "x",
        "peak_memory_mb": 100.0,
        "cuda_graphs": False,
    }
    rows = [
        {**common, "method": "bicro", "networks": 2, "filter_seconds": 1.0, "train_seconds": 5.0},
        {**common, "method": "srem", "networks": 1, "filter_seconds": 0.0, "train_seconds": 3.0},
    ]
    measured, published = efficiency_table(rows).sections
    assert measured[1][0] == ["dual", "bicro", "2", "1.0", "5.0", "2.00x", "100"]
    assert published[1][0][5] == "4.45x"  # (365 + 6344) / 1506
