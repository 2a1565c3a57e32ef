"""The memory ledger as a rich renderable that reads well at 100 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .memory_ledger import MemoryPlan

_GIB = 1024**3


def render_plan(plan: MemoryPlan) -> RenderableType:
    """Return the ledger, the totals, the number of sequences and the advice."""
    head = Text(
        f"Memory of {plan.model} on {plan.target}: {plan.dtype}, weights {plan.weight_dtype}, "
        f"KV {plan.kv_dtype}",
        style="bold",
    )
    return Group(head, _ledger(plan), _totals(plan), *_verdict(plan))


def _ledger(plan: MemoryPlan) -> Table:
    table = Table()
    table.add_column("item")
    table.add_column("bytes", justify="right")
    table.add_column("GiB", justify="right")
    table.add_column("how")
    for row in plan.rows:
        how = row.how + (" (estimate)" if row.estimate else "")
        table.add_row(row.name, f"{row.bytes:,}", _gib(row.bytes), Text(how))
    table.add_section()
    table.add_row("total", f"{plan.total_bytes:,}", _gib(plan.total_bytes), "", style="bold")
    if plan.memory_bytes is not None and plan.usable_bytes is not None:
        left = plan.headroom_bytes or 0
        share = plan.usable_bytes / plan.memory_bytes
        how = f"{share:.0%} of {_gib(plan.memory_bytes)} GiB ({plan.memory_source})"
        table.add_row("usable", f"{plan.usable_bytes:,}", _gib(plan.usable_bytes), Text(how))
        style = "bold green" if left >= 0 else "bold red"
        table.add_row("head room", f"{left:,}", _gib(left), "", style=style)
    return table


def _totals(plan: MemoryPlan) -> Text:
    capacity = plan.capacity
    lines = [
        f"KV: {plan.token_bytes:,} bytes a token, {plan.page_bytes:,} bytes a page, "
        f"{plan.pages:,} pages ({plan.fill:.0%} of {plan.pages_full:,})",
        f"weights + KV: contiguous {_gib(plan.weights_and_contiguous)} GiB, "
        f"paged {_gib(plan.weights_and_paged)} GiB",
    ]
    if capacity.paged_full is not None:
        lines.append(
            f"sequences that fit: paged {capacity.paged_mean:,} at the mean length "
            f"{capacity.mean_len:g}, {capacity.paged_full:,} at full length; "
            f"contiguous {capacity.contiguous:,}"
        )
    else:
        lines.append(
            f"sequences that fit: the memory of {plan.target} is not known "
            f"({plan.memory_source}); give it with --memory"
        )
    return Text("\n".join(lines))


def _verdict(plan: MemoryPlan) -> list[Text]:
    if plan.fits is not False:
        return []
    lines = [Text("It does not fit. What to change:", style="bold red")]
    return lines + [Text(f"  {line}") for line in plan.advice]


def _gib(size: int) -> str:
    return f"{size / _GIB:.2f}"
