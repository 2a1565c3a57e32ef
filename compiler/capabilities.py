"""The capability matrix: what `compile-model --capabilities [SOC]` prints, as data and as text."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .target_cautions import RELEASE_NOTES
from .target_families import FAMILIES
from .target_records import Family, Limit, Target
from .target_resolve import resolve_target
from .targets import PATTERN_950, TARGETS

_GIB = 1024**3


def capability_matrix(soc: str | None = None) -> dict[str, Any]:
    """Return the matrix as JSON-ready data: all families, or one SoC with every source.

    Raises TargetError for an unknown name, with the names near to it.
    """
    if soc is None:
        return {"schema": 1, "families": [_family_summary(family) for family in FAMILIES]}
    target = resolve_target(soc)
    return {
        "schema": 1,
        "soc": target.name,
        "family": target.family.name,
        "facts": [
            {"name": name, "value": value, "source": source}
            for name, value, source in (*_soc_facts(target), *_family_facts(target.family))
        ],
    }


def render_capabilities(matrix: dict[str, Any]) -> RenderableType:
    """Return the matrix as a rich renderable that reads well at 80 columns: a block a target."""
    if "soc" in matrix:
        title = f"{matrix['soc']} (family {matrix['family']})"
        table = Table(title=title, title_justify="left", expand=True)
        for name, ratio in (("what", 3), ("value", 4), ("source", 5)):
            table.add_column(name, ratio=ratio, overflow="fold")
        for fact in matrix["facts"]:
            table.add_row(fact["name"], _words(fact["value"]), fact["source"])
        return table
    parts: list[RenderableType] = []
    for family in matrix["families"]:
        heading = Text.assemble((family["name"], "bold"), f"  {_brief(family['socs'])}")
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        for name, value in _summary(family):
            grid.add_row(f"  {name}", Text(value))
        parts += [heading, grid, Text("")]
    note = Text(
        "Sources: --capabilities SOC, for example --capabilities Ascend910B3. "
        "No row was measured on a device: all is from documentation and source code.",
        style="dim",
    )
    return Group(*parts, note)


def _summary(family: dict[str, Any]) -> list[tuple[str, str]]:
    attention = f"decode {family['decode']}, prefill {family['prefill']}"
    if family["prefill"].startswith(family["decode"]):
        attention = family["prefill"]
    write = family["cache_write"]
    if family["cache_write_min_cann"]:
        write += f" (CANN >= {family['cache_write_min_cann']})"
    if family["cache_write_fallback"]:
        write += f", else {family['cache_write_fallback']}"
    low, high = family["gears"]
    shapes = f"static; {low} to {high} gears" + ("; any (range)" if family["range_shapes"] else "")
    return [
        ("dtypes", ", ".join(family["dtypes"])),
        ("attention", attention),
        ("cache write", write),
        ("page size", f"{family['page_sizes']}; default {family['default_page_size']}"),
        ("shapes", shapes),
    ]


def _brief(socs: list[str]) -> str:
    return ", ".join(soc.removeprefix("Ascend") for soc in socs if soc != "host")


def _family_summary(family: Family) -> dict[str, Any]:
    socs = [name for name, target in TARGETS.items() if target.family is family]
    return {
        "name": family.name,
        "socs": socs or list(PATTERN_950),
        "dtypes": list(family.dtypes),
        "decode": family.attention.op if family.attention else family.prefill,
        "prefill": family.prefill,
        "cache_write": family.cache_write.op,
        "cache_write_min_cann": family.cache_write.min_cann,
        "cache_write_fallback": family.cache_write.fallback,
        "page_sizes": _page_words(family),
        "default_page_size": family.default_page_size,
        "gears": [family.gears.minimum, family.gears.maximum],
        "range_shapes": family.feature("range shapes").supported,
    }


def _page_words(family: Family) -> str:
    if family.name == "host":
        return "multiple of 32 (any with the oracle executor)"
    if family.attention is None:
        return "multiple of 16"
    if family.attention.op == "FusedInferAttentionScore":
        return "multiple of 16, at most 512 (op doc: 128); of 128 where head_dim is not 64 or 128"
    return "multiple of 16, at most 512"


Fact = tuple[str, Any, str]


def _soc_facts(target: Target) -> list[Fact]:
    facts: list[Fact] = [
        ("device memory, bytes", target.memory_bytes.value, target.memory_bytes.source),
        ("AI cores", target.ai_cores.value, target.ai_cores.source),
    ]
    buffers = target.buffers
    if buffers is not None:
        sizes = {"L1": buffers.l1, "L0A": buffers.l0a, "L0B": buffers.l0b, "L0C": buffers.l0c}
        words = [f"{name} {size // 1024} KiB" for name, size in {**sizes, "UB": buffers.ub}.items()]
        facts.append(("local buffers of a core", words, buffers.source))
    return facts


def _cache_write_facts(family: Family) -> list[Fact]:
    write = family.cache_write
    rows: list[Fact] = [("cache write", write.op, write.source)]
    if write.min_cann:
        rows.append(("cache write, minimum CANN", write.min_cann, write.source))
    if write.fallback:
        rows.append(("cache write, otherwise", write.fallback, write.source))
    skipped = "skipped" if write.negative_slots else "not skipped: padding needs the null page"
    return [*rows, ("slots of -1 (padding)", skipped, write.source)]


def _family_facts(family: Family) -> list[Fact]:
    gears = family.gears
    facts: list[Fact] = [
        ("dtypes", list(family.dtypes), family.dtype_source),
        ("page size", _page_words(family), "docs/design/targets.md"),
        ("default page size", family.default_page_size, "docs/design/targets.md"),
        ("prefill attention", family.prefill, "docs/design/targets.md"),
        *_attention_facts(family),
        *_cache_write_facts(family),
        ("other operators", sorted(family.kernels) or "composed", family.kernel_source),
        ("gears", f"{gears.minimum}..{gears.maximum}, {gears.advised} advised", gears.source),
        ("dims of all inputs, geared model", gears.total_dims, gears.dims_source),
    ]
    if family.table_align > 1:
        align = f"multiple of {family.table_align} int32"
        facts.append(("block-table row", align, "docs/design/targets.md"))
    for row in family.features:
        version = f", CANN >= {row.min_cann}" if row.min_cann else ""
        facts.append((row.name, ("yes" if row.supported else "no") + version, row.source))
    op = family.attention.op if family.attention else ""
    notes = RELEASE_NOTES.get(op, ())
    return facts + [(note.what, f"CANN known {note.known}", note.source) for note in notes]


def _attention_facts(family: Family) -> list[Fact]:
    op = family.attention
    if op is None:
        return []
    limits: tuple[tuple[str, Limit], ...] = (
        ("sequences in a step", op.max_batch),
        ("query heads", op.max_heads),
        ("head_dim", op.max_head_dim),
        ("query heads per KV head", op.max_group),
        ("tokens of one sequence", op.max_kv_len),
        ("KV heads x head_dim", op.max_row),
    )
    rows: list[Fact] = [
        (f"{'/'.join(op.phases)} attention", f"{op.op}, {op.cache_layout} cache", op.dtype_source),
        ("KV cache dtypes", list(op.kv_dtypes), op.dtype_source),
        ("sliding windows", "yes" if op.windows else "no (composed instead)", op.window_source),
    ]
    for name, limit in limits:
        value = "no limit known" if limit.value is None else f"at most {limit.value}"
        rows.append((name, value, limit.source))
    multiple = op.head_dim_multiple
    if multiple.value != 1:
        rows.append(("head_dim is a multiple of", multiple.value, multiple.source))
    return rows


def _words(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, int) and value > _GIB:
        return f"{value} ({value / _GIB:.2f} GiB)"
    return ", ".join(value) if isinstance(value, list) else str(value)
