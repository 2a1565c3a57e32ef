"""The memory ledger as a rich renderable that reads well at 100 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .memory_ledger import MemoryPlan
from .number_text import counted, size_text


def render_plan(plan: MemoryPlan) -> RenderableType:
    """Return whether it fits, the ledger, the totals, the number of sequences and the advice."""
    head = Text(
        f"Memory of {plan.model} on {plan.target}: {plan.dtype}, weights {plan.weight_dtype}, "
        f"KV {plan.kv_dtype}",
        style="bold",
    )
    return Group(_verdict(plan), head, _ledger(plan), _totals(plan), *_advice(plan))


def _ledger(plan: MemoryPlan) -> Table:
    table = Table()
    table.add_column("item")
    table.add_column("bytes", justify="right")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("how")
    for row in plan.rows:
        how = row.how + (" (estimate)" if row.estimate else "")
        table.add_row(row.name, f"{row.bytes:,}", size_text(row.bytes), Text(how))
    table.add_section()
    table.add_row("total", f"{plan.total_bytes:,}", size_text(plan.total_bytes), "", style="bold")
    if plan.memory_bytes is not None and plan.usable_bytes is not None:
        left = plan.headroom_bytes or 0
        share = plan.usable_bytes / plan.memory_bytes
        how = f"{share:.0%} of {size_text(plan.memory_bytes)} ({plan.memory_source})"
        table.add_row("usable", f"{plan.usable_bytes:,}", size_text(plan.usable_bytes), Text(how))
        style = "bold green" if left >= 0 else "bold red"
        table.add_row("head room", f"{left:,}", size_text(left), "", style=style)
    return table


def _totals(plan: MemoryPlan) -> Text:
    capacity = plan.capacity
    lines = [
        f"KV: {plan.token_bytes:,} bytes a token, {plan.page_bytes:,} bytes a page, "
        f"{counted(plan.pages, 'page')} ({plan.fill:.0%} of {plan.pages_full:,})",
        f"weights + KV: contiguous {size_text(plan.weights_and_contiguous)}, "
        f"paged {size_text(plan.weights_and_paged)}",
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


def _verdict(plan: MemoryPlan) -> Text:
    where, total = f"{plan.model} on {plan.target}", size_text(plan.total_bytes)
    if plan.usable_bytes is None:
        return Text(
            f"{where} needs {total}; whether that fits is not known: give the device's memory with "
            f"--memory ({plan.memory_source}).",
            style="bold yellow",
        )
    usable = f"{size_text(plan.usable_bytes)} may be used"
    if plan.fits:
        return Text(f"{where} fits: it needs {total}, {usable}.", style="bold green")
    missing = size_text(plan.total_bytes - plan.usable_bytes)
    return Text(
        f"{where} does not fit: it needs {total}, {usable}, {missing} are missing.",
        style="bold red",
    )


def _advice(plan: MemoryPlan) -> list[Text]:
    if plan.fits is not False:
        return []
    return [Text("What to change:", style="bold"), *(Text(f"  {line}") for line in plan.advice)]
