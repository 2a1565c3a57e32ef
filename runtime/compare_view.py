"""A comparison for people and for machines."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .compare import Comparison, Divergence
from .compare_agreement import Agreement, TokenDifference, Where

_MOST_NAMED = 6


def render(found: Comparison, operators: bool = False) -> RenderableType:
    """Return the human view: a line a layer, or a line an operator, then the verdict."""
    title = Text.assemble(("A  ", "dim"), found.first, ("\nB  ", "dim"), found.second)
    counts = f"{_count(found.steps, 'step')}, {_count(found.tokens, 'token')}"
    facts = (
        f"{counts}. error: worst |a-b|/|a| of a row, tolerance {found.tolerance:g}; largest "
        "|a-b|; least cosine of a row"
    )
    parts: list[RenderableType] = [title, Text(facts, style="dim"), Text("")]
    if found.agreements:
        parts += [_operator_table(found) if operators else _layer_table(found), Text("")]
    parts += [_verdict(found), *(Text(f"note: {note}", style="dim") for note in found.notes)]
    return Group(*parts)


def to_json(found: Comparison) -> dict[str, Any]:
    """Return everything as plain values; what is not finite is a string."""
    divergence, token = found.divergence, found.token
    return {
        "agrees": found.agrees,
        "complete": found.complete,
        "a": found.first,
        "b": found.second,
        "tolerance": found.tolerance,
        "steps": found.steps,
        "tokens": found.tokens,
        "first_divergence": None if divergence is None else _divergence_json(divergence),
        "first_token": None if token is None else _token_json(token),
        "logits": _agreement_json(found.logits),
        "layers": [
            {"layer": place, **_agreement_json(worst)} for place, worst, _ in _by_layer(found)
        ],
        "operators": [_agreement_json(each) for each in found.agreements],
        "notes": found.notes,
    }


def _by_layer(found: Comparison) -> list[tuple[str, Agreement, int]]:
    """(layer, its worst operator with the extremes of all, number of operators), in order."""
    rows = []
    for place, group in groupby(found.agreements, key=lambda each: each.point.place):
        members = list(group)
        worst = max(members, key=lambda each: each.worst)
        summary = Agreement(
            worst.point,
            worst.rows,
            max(each.largest for each in members),
            worst.worst,
            min(each.cosine for each in members),
            worst.at,
            worst.first,
        )
        rows.append((place, summary, len(members)))
    return rows


def _layer_table(found: Comparison) -> Table:
    table = _table("layer", "operators", "worst")
    for place, worst, count in _by_layer(found):
        cells = [place, str(count), _short(worst.point.node), *_numbers(worst)]
        table.add_row(*cells, style=_style(worst, found.tolerance))
    _add_logits(table, found, ["logits", "", ""])
    return table


def _short(name: str) -> str:
    """The name of an operator without the layer that the table already shows."""
    return re.sub(r"^/?layers\.\d+/", "", name)


def _operator_table(found: Comparison) -> Table:
    table = _table("layer", "operator", "type")
    for each in found.agreements:
        cells = [each.point.place, each.point.node, each.point.type, *_numbers(each)]
        table.add_row(*cells, style=_style(each, found.tolerance))
    _add_logits(table, found, ["logits", "", ""])
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, overflow="fold")
    for name in ("error", "largest", "cosine"):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _add_logits(table: Table, found: Comparison, cells: Sequence[str]) -> None:
    style = _style(found.logits, found.tolerance)
    table.add_row(*cells, *_numbers(found.logits), style=style)


def _numbers(each: Agreement) -> list[str]:
    return [f"{each.worst:.1e}", f"{each.largest:.1e}", f"{each.cosine:.6f}"]


def _style(each: Agreement, tolerance: float) -> str:
    return "red" if each.worst > tolerance else ""


def _verdict(found: Comparison) -> Text:
    text = Text()
    if found.divergence is not None:
        text.append(_divergence_text(found.divergence), style="bold red")
    elif not found.agrees:
        text.append("The logits differ.", style="bold red")
    else:
        text.append("No divergence.", style="bold green")
    if not found.complete:
        text.append(" Layers behind it were not looked at (--every does).", style="dim")
    if found.token is not None:
        text.append("\n" + _token_text(found.token))
    elif found.logits.rows:
        rows = found.logits.rows
        same = "The next token is" if rows == 1 else f"All {rows} next tokens are"
        text.append(f"\n{same} the same.")
    return text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _divergence_text(divergence: Divergence) -> str:
    each = divergence.agreement
    point, first = each.point, each.first
    text = f"First divergence: {point.place}, {point.node} ({point.type})"
    if first is not None:
        text += f" at {_where(first)}"
    others = divergence.between[:-1]
    if others:
        shown = ", ".join(others[-_MOST_NAMED:])
        text += f"\nThe fault is in it or in what leads to it: {shown}"
    for name, difference in divergence.weights.items():
        if difference:
            text += f"\nThe two files differ in {name} by up to {difference:.3g}"
    return text


def _token_text(token: TokenDifference) -> str:
    return (
        f"First different token: {token.first} and {token.second} at {_where(token.where)}; in A's "
        f"logits they are {token.gap:.3g} apart"
    )


def _where(where: Where) -> str:
    return f"step {where.step}, prompt {where.prompt}, position {where.position}"


def _agreement_json(each: Agreement) -> dict[str, Any]:
    return {
        "operator": each.point.node,
        "type": each.point.type,
        "layer": each.point.place,
        "rows": each.rows,
        "relative_error": _number(each.worst),
        "largest_error": _number(each.largest),
        "least_cosine": _number(each.cosine),
        "worst_at": _where_json(each.at),
    }


def _divergence_json(divergence: Divergence) -> dict[str, Any]:
    return {
        **_agreement_json(divergence.agreement),
        "first_at": _where_json(divergence.agreement.first),
        "between": list(divergence.between),
        "weight_differences": divergence.weights,
    }


def _token_json(token: TokenDifference) -> dict[str, Any]:
    at = _where_json(token.where)
    return {"at": at, "a": token.first, "b": token.second, "gap": _number(token.gap)}


def _where_json(where: Where | None) -> dict[str, int] | None:
    return None if where is None else vars(where)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
