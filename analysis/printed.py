"""Tables as the paper prints them: mean ± sd in one cell, bytes in readable units, a short heading per column."""

from __future__ import annotations

import math
from numbers import Real

import pandas as pd

from analysis import style

LATEX = str.maketrans({
    "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "|": "$|$", "−": "$-$", "±": r"$\pm$", "Δ": r"$\Delta$",
    "τ": r"$\tau$", "–": "--",
})  # fmt: skip
PREFIXES = ("", "k", "M", "G", "T")
PERCENT = ("val_accuracy", "saved_over_adtopk", "saved_over_dense", "reached")
VISIBLE = 0.5e-4  # what four decimals can show


def booktabs(table: pd.DataFrame) -> str:
    """A LaTeX tabular; needs \\usepackage{booktabs}. `note` goes below the table."""
    notes, table = noted(table)
    headings, cells = columns(table)
    align = "".join("r" if pd.api.types.is_numeric_dtype(table[name]) else "l" for name in shown(table))
    rows = [" & ".join(text.translate(LATEX) for text in row) + r" \\" for row in (headings, *zip(*cells, strict=True))]
    foot = [rf"\multicolumn{{{len(headings)}}}{{l}}{{\emph{{{note.translate(LATEX)}}}}} \\" for note in notes]
    lines = [rf"\begin{{tabular}}{{{align}}}", r"\toprule", rows[0], r"\midrule", *rows[1:],
             *([r"\midrule", *foot] if foot else []), r"\bottomrule", r"\end{tabular}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def markdown(table: pd.DataFrame) -> str:
    """A table as GitHub shows it; `note` goes below."""
    notes, table = noted(table)
    headings, cells = columns(table)
    line = ["---:" if pd.api.types.is_numeric_dtype(table[name]) else ":---" for name in shown(table)]
    rows = [[text.replace("|", r"\|") for text in row] for row in (headings, *zip(*cells, strict=True))]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], line, *rows[1:])]
    return "\n".join([*lines, *(f"\n*{note}*" for note in notes)]) + "\n"


def noted(table: pd.DataFrame) -> tuple[list[str], pd.DataFrame]:
    """The notes of a table, and the table without them."""
    notes = [str(note) for note in table["note"].unique()] if "note" in table else []
    return notes, table.drop(columns="note", errors="ignore")


def columns(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Headings, and the cells under each; `<column>_sd` goes into its column."""
    headings, cells = [], []
    for name in shown(table):
        scale, unit = units(name, table[name])
        headings.append(style.HEADINGS.get(name, style.label(name)) + unit)
        sd = table.get(f"{name}_sd", pd.Series(math.nan, table.index))
        digits = decimals(table[name], sd, scale)
        cells.append([cell(value, spread, scale, digits) for value, spread in zip(table[name], sd, strict=True)])
    return headings, cells


def shown(table: pd.DataFrame) -> list[str]:
    """The columns that are printed as such."""
    return [name for name in table if name != "run" and not (name.endswith("_sd") and name[:-3] in table)]


def units(name: str, values: pd.Series) -> tuple[float, str]:
    """Factor and unit to print a column in."""
    if name in PERCENT:
        return 100, ""
    if not name.endswith("_bytes"):
        return 1, ""
    largest = values.abs().max()
    power = min(len(PREFIXES) - 1, int(math.log10(largest) // 3)) if largest >= 1 else 0
    return 1000.0**-power, f" ({PREFIXES[power]}B)"


def decimals(values: pd.Series, sd: pd.Series, scale: float) -> int:
    """Two significant digits of the smallest sd that shows at all, else four of the largest value; at most 4.

    Whole numbers stay whole, unless a unit scales them.
    """
    if not pd.api.types.is_numeric_dtype(values) or (scale == 1 and (values.dropna() % 1 == 0).all()):
        return 0
    spread = (sd * scale)[sd * scale >= VISIBLE].min()
    if spread == spread:
        return min(4, max(0, 1 - math.floor(math.log10(spread))))
    largest = (values.abs() * scale).max()
    return min(4, max(0, 3 - math.floor(math.log10(largest)))) if largest > 0 else 0


def cell(value: object, sd: float, scale: float, digits: int) -> str:
    """`4.506 ± 0.024`; a value that does not vary stands alone, one that is not known is a dash."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, Real):
        return str(value)
    if math.isnan(value):
        return "–"
    text = f"{value * scale:.{digits}f}".replace("-", "−")
    return f"{text} ± {sd * scale:.{digits}f}" if sd * scale >= VISIBLE else text
