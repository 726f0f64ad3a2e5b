"""A table as plain text for the terminal, Markdown, LaTeX and HTML."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from sremkit.errors import UserError
from sremkit.io import atomic_write

_BOLD = re.compile(r"\*\*(.+?)\*\*")


@dataclass
class Table:
    """Cells as text, in sections with a heading each. The first `labels` columns name the row."""

    title: str
    columns: Sequence[str]
    labels: int = 1
    sections: list[tuple[str, list[list[str]]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_section(self, heading: str, lines: list[list[str]]) -> None:
        """Add lines under a heading; without any line nothing is added."""
        for line in lines:
            if len(line) != len(self.columns):
                raise ValueError(f"a line of {len(line)} cells in a table of {len(self.columns)} columns")
        if lines:
            self.sections.append((heading, lines))

    def as_text(self) -> str:
        parts = [self.title]
        for heading, lines in self.sections:
            parts.append(f"{heading}\n\n{aligned([list(self.columns), *lines])}")
        return "\n\n".join(parts + self.notes)

    def as_markdown(self) -> str:
        parts = [f"**{self.title}**"]
        ruler = "|".join([" --- "] * self.labels + [" ---: "] * (len(self.columns) - self.labels))
        for heading, lines in self.sections:
            body = [_piped(line) for line in lines]
            parts.append("\n".join([f"*{heading}*", "", _piped(self.columns), f"|{ruler}|", *body]))
        return "\n\n".join(parts + self.notes) + "\n"

    def as_latex(self) -> str:
        """A tabular for booktabs, and for amssymb where it has check marks."""
        align = "l" * self.labels + "r" * (len(self.columns) - self.labels)
        lines = [f"% {self.title}", rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
        lines += [_ampersands(self.columns), r"\midrule"]
        for k, (heading, body) in enumerate(self.sections):
            lines += [r"\midrule"] if k else []
            lines += [rf"\multicolumn{{{len(self.columns)}}}{{l}}{{\emph{{{_tex(heading)}}}}} \\"]
            lines += [_ampersands(line) for line in body]
        lines += [r"\bottomrule", r"\end{tabular}", *(f"% {note}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def as_html(self) -> str:
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        body = ""
        for heading, lines in self.sections:
            body += f'<tr><th colspan="{len(self.columns)}" scope="rowgroup">{escape(heading)}</th></tr>\n'
            for line in lines:
                body += "<tr>" + "".join(f"<td>{_html(cell)}</td>" for cell in line) + "</tr>\n"
        notes = "".join(f"<p>{escape(note)}</p>\n" for note in self.notes)
        return PAGE.format(title=escape(self.title), head=head, body=body, notes=notes, labels=self.labels)

    def write(self, path: Path) -> None:
        """Write it in the format of the file's suffix."""
        formats = {".md": self.as_markdown, ".tex": self.as_latex, ".html": self.as_html, ".txt": self.as_text}
        if path.suffix not in formats:
            raise UserError(f"{path} ends in '{path.suffix}'; tables are written as {', '.join(formats)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, formats[path.suffix]())


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }}
th, td {{ padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #8884; }}
td:nth-child(-n+{labels}), thead th:nth-child(-n+{labels}), th[scope] {{ text-align: left; }}
th[scope] {{ padding-top: 1rem; font-style: italic; }}
@media (prefers-color-scheme: dark) {{ body {{ background: #16181c; color: #e6e6e6; }} }}
</style>
<h1>{title}</h1>
<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>
{body}</tbody></table></div>
{notes}</html>
"""


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first one left, the others right."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in lines
    )


def grouped(rows: Sequence[dict[str, Any]], *keys: str) -> dict[tuple, list[dict[str, Any]]]:
    """The rows by their values of `keys`, in order of appearance."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def mean_and_deviation(values: Sequence[float], key: str) -> str:
    """Mean ± standard deviation as text, with a number of digits that follows from the metric's name."""
    values = [value for value in values if not math.isnan(value)]  # without noise there is nothing to detect
    if not values:
        return "-"
    digits = 1 if "R@" in key or "rsum" in key or "seconds" in key else 0 if key.endswith("mb") else 3
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _ampersands(cells: Sequence[str]) -> str:
    return " & ".join(_tex(cell) for cell in cells) + r" \\"


def bold(cell: str) -> str:
    """A cell in bold, as Markdown writes it; the other formats translate it."""
    return f"**{cell}**"


def _html(cell: str) -> str:
    return _BOLD.sub(r"<b>\1</b>", escape(cell))


def _tex(text: str) -> str:
    text = _BOLD.sub(r"\\textbf{\1}", text)
    for sign in "&%#_":
        text = text.replace(sign, "\\" + sign)
    return text.replace("±", r"$\pm$").replace("→", r"$\to$").replace("✓", r"$\checkmark$")
