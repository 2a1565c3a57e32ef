"""Page-size advice as a rich renderable that reads well at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .page_advisor import PageAdvice, PageRow


def render_page_advice(advice: PageAdvice) -> RenderableType:
    """Return rules, table of sizes and the recommendation."""
    lines = [
        Text(f"Page sizes on {advice.target}, {advice.kv_dtype} KV cache", style="bold"),
        Text(
            f"legal: {_ranges(advice.legal)}"
            + ("" if _bounded(advice) else ", no upper bound known")
        ),
    ]
    lines += [
        Text(f"  {rule.phase}: {rule.text}  [{rule.source}]")
        for rule in advice.rules
        if rule.multiple > 1 or rule.maximum is not None
    ]
    if advice.kv_row_limit is not None:
        sign = "<=" if advice.kv_row <= advice.kv_row_limit else "> (not allowed)"
        lines.append(
            Text(f"  K x D: {advice.kv_row} {sign} {advice.kv_row_limit}  [{advice.kv_row_source}]")
        )
    lines.append(Text(f"waste: {advice.distribution}"))
    table = Padding(_table(advice), (1, 0))
    verdict = Text.assemble(
        ("recommended: ", "bold"),
        (str(advice.recommended), "bold green"),
        f"  set by: {advice.decided_by}\n  {advice.why}",
    )
    notes = Text(_notes(advice), style="dim")
    return Group(*lines, table, verdict, notes)


def _table(advice: PageAdvice) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    columns = _columns(advice.rows)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row, cells in zip(advice.rows, zip(*columns.values())):
        chosen = row.page_size == advice.recommended
        table.add_row(*cells, style="bold green" if chosen else "")
    return table


def _columns(rows: Sequence[PageRow]) -> dict[str, list[str]]:
    """Return the cells by heading; what means nothing for any of the sizes is left out."""
    columns = {
        "tokens": [str(row.page_size) for row in rows],
        "waste": [f"{row.waste:.1%}" for row in rows],
        "empty": [f"{row.waste_tokens:.1f}" for row in rows],
        "pages": [f"{row.pages:.1f}" for row in rows],
        "table M": [str(row.table_width) for row in rows],
        "page": [_size(row.page_bytes) for row in rows],
        "head's K": [_size(row.head_bytes) for row in rows],
        "lost": [f"{row.prefix_lost:.1f}" for row in rows],
    }
    if any(row.fits_twice is not None for row in rows):
        fits = {True: "yes", False: "no", None: "-"}
        columns["2x in L0B"] = [fits[row.fits_twice] for row in rows]
    if any(row.prefix_reused for row in rows):
        columns["reused"] = [str(row.prefix_reused) for row in rows]
    return columns


def _size(nbytes: int) -> str:
    return f"{nbytes / 1024:.4g} KiB" if nbytes < 1 << 20 else f"{nbytes / (1 << 20):.4g} MiB"


def _notes(advice: PageAdvice) -> str:
    text = (
        "waste: share of the cache in last pages that holds no token; empty: the same in tokens a "
        "sequence. pages: of a sequence, on average; table M: of the longest. page: K and V of all "
        "layers; head's K: K of one head in it. lost: tokens of a shared prefix that are computed "
        "again per hit, because only whole pages are shared."
    )
    if advice.buffer_source:
        text += f" 2x in L0B: one head's page fits a core's buffer twice [{advice.buffer_source}]."
    return text


def _bounded(advice: PageAdvice) -> bool:
    return any(rule.maximum is not None for rule in advice.rules)


def _ranges(sizes: tuple[int, ...]) -> str:
    if len(sizes) <= 8:
        return ", ".join(str(size) for size in sizes)
    step = sizes[1] - sizes[0]
    if sizes == tuple(range(sizes[0], sizes[-1] + 1, step)):
        return f"{sizes[0]}, {sizes[1]}, ... {sizes[-1]} (every {step})"
    return ", ".join(str(size) for size in sizes[:8]) + f", ... {sizes[-1]}"
