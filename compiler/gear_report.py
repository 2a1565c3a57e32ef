"""A gear plan as a rich renderable that reads well at 100 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .gear_planner import GearPlan


def render_gears(plan: GearPlan) -> RenderableType:
    """Return the gears, what runs on each, and the padding to expect."""
    table = Table(title="Gears", title_justify="left")
    for name in ("T tokens", "B rows", "share of steps", "padding"):
        table.add_column(name, justify="right")
    for use in plan.uses:
        cells = (use.gear[0], use.gear[1], f"{use.steps:.1%}", f"{use.padding:.1%}")
        table.add_row(*(str(cell) for cell in cells))
    lines = [
        f"expected padding: {plan.padding:.1%} of all tokens (one static shape: "
        f"{plan.single_padding:.1%})",
        f"traffic: {plan.traffic}",
        "a row more than sequences is for the dummy sequence that owns the padding tokens",
    ]
    if plan.extra_bytes:
        lines.append(f"estimated size of all gears: {plan.extra_bytes / 1024**2:.0f} MiB")
    return Group(table, *(Text(line) for line in (*lines, *plan.notes)))
