"""Page-size advice as a rich renderable that reads well at 100 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
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
    table = _table(advice)
    verdict = Text.assemble(
        ("recommended: ", "bold"),
        (str(advice.recommended), "bold green"),
        f"  set by: {advice.decided_by}\n  {advice.why}",
    )
    notes = Text(_notes(advice), style="dim")
    return Group(*lines, table, verdict, notes)


def _table(advice: PageAdvice) -> Table:
    table = Table()
    for name in ("tokens", "waste", "empty", "pages/seq", "table M", "page"):
        table.add_column(name, justify="right")
    for name in ("one head's K", "2x in L0B", "prefix lost"):
        table.add_column(name, justify="right")
    for row in advice.rows:
        chosen = row.page_size == advice.recommended
        table.add_row(*_cells(row), style="bold green" if chosen else "")
    return table


def _cells(row: PageRow) -> tuple[str, ...]:
    fit = {True: "yes", False: "no", None: "-"}[row.fits_twice]
    lost = f"{row.prefix_lost:.1f}"
    if row.prefix_reused:
        lost += f", reuses {row.prefix_reused}"
    return (
        str(row.page_size),
        f"{row.waste:.1%}",
        f"{row.waste_tokens:.1f}",
        f"{row.pages:.1f}",
        str(row.table_width),
        f"{row.page_bytes / 1024:.0f} KiB",
        f"{row.head_bytes / 1024:.4g} KiB",
        fit,
        lost,
    )


def _notes(advice: PageAdvice) -> str:
    text = (
        "waste: share of the cache in last pages that holds no token; empty: the same in tokens a "
        "sequence. page: K and V of all layers. prefix lost: tokens of a shared prefix that are "
        "computed again per hit, because only whole pages are shared."
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
