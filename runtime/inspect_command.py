"""`run-om inspect`: what a model file or an artefact holds, without running it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import click
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .artifact import Artifact, ArtifactError
from .manifest import Manifest
from .om_file.description import OmDescription, PartitionRow, TensorRow, describe_om
from .om_file.errors import OmFormatError
from .om_file.mode1_json import message_to_json
from .om_file.om_reader import read_om
from .show import show

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def om_to_mode1_json(path: str | Path, model: int = 0) -> str:
    """Return a model of a file in the JSON form of `atc --mode=1`.

    Args:
        path: the .om file.
        model: which model of the file: 0 is the root (what ATC prints).

    Raises:
        OmFormatError: the file breaks the format or has no such model.
    """
    with read_om(path) as om:
        if not 0 <= model < len(om.models):
            raise OmFormatError(f"the file has models 0 to {len(om.models) - 1}, not {model}")
        return message_to_json(om.models[model].model_message())


def human_bytes(nbytes: int) -> str:
    """Return a size with one decimal in the largest fitting unit, for example "1.5 MiB"."""
    if nbytes < 1024:
        return f"{nbytes} B"
    power = min((nbytes.bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{nbytes / 1024**power:.1f} {_UNITS[power]}"


@click.command(name="inspect", short_help="Show what a model file or an artefact holds.")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the JSON form of `atc --mode=1`.")
def inspect(path: Path, as_json: bool) -> None:
    """Show what PATH holds: an .om file (Ascend's or ours) or an artefact's folder."""
    try:
        artifact = Artifact.open(path) if path.is_dir() else None
        model = path if artifact is None else artifact.model_path
        if as_json:
            click.echo(om_to_mode1_json(model))
            return
        view = render_description(describe_om(model))
    except (OmFormatError, ArtifactError, OSError) as error:
        raise click.ClickException(str(error)) from None
    show(*([render_manifest(artifact.manifest)] if artifact is not None else []), view)


def render_description(found: OmDescription) -> RenderableType:
    """Return the human view of a model file, made for 80 columns."""
    parts: list[RenderableType] = [
        _section("Model", _facts(_header_facts(found))),
        _section("Partitions", _partition_table(found.partitions)),
        _section("Inputs", _tensor_table(found.inputs)),
        _section("Outputs", _tensor_table(found.outputs)),
        _section(_operator_title(found), _operator_columns(found.operators)),
    ]
    if found.gears:
        parts.append(_section("Dynamic gears", Text("\n".join(found.gears))))
    if found.notes:
        parts.append(_section("Notes", Text("\n".join(found.notes))))
    return Group(*parts)


def render_manifest(manifest: Manifest) -> RenderableType:
    """Return the human view of an artefact's facts."""
    model = manifest.model
    heads = f"{model.num_heads} heads, {model.num_kv_heads} for K and V, of {model.head_dim}"
    facts = [
        ("name", manifest.name),
        ("target", manifest.target + (f" ({manifest.soc})" if manifest.soc else "")),
        ("model", f"{model.family}, {model.num_layers} layers of {model.hidden_size}, {heads}"),
        ("vocabulary", f"{model.vocab_size} tokens"),
        ("dtype", manifest.dtype),
        ("limits", f"{manifest.max_seq_len} tokens a sequence, {manifest.max_batch} sequences"),
        ("pages", f"{manifest.page_size} tokens each, {manifest.table_width} a sequence at most"),
        ("cache", manifest.cache_layout),
        ("gears", "; ".join(_gear_text(gear.items()) for gear in manifest.gears)),
        ("memory", ", ".join(f"{k} {human_bytes(v)}" for k, v in manifest.memory.items())),
        ("tools", ", ".join(f"{name} {version}" for name, version in manifest.tools.items())),
        ("files", ", ".join(f"{n} ({human_bytes(f.bytes)})" for n, f in manifest.files.items())),
    ]
    return _section("Artefact", _facts(facts))


def _gear_text(extents: Iterable[tuple[str, int]]) -> str:
    return " ".join(f"{symbol}={extent}" for symbol, extent in extents)


def _section(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(title, style="bold cyan"), Padding(body, (0, 0, 1, 2)))


def _facts(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in rows:
        if value:
            table.add_row(key, Text(value))
    return table


def _header_facts(found: OmDescription) -> list[tuple[str, str]]:
    header = found.header
    version = f"0x{header.version:08x}, IR {header.om_ir_version}"
    return [
        ("file", f"{found.path} ({human_bytes(found.file_bytes)})"),
        ("kind", found.kind),
        ("name", header.name),
        ("version", f"{version}, platform {header.platform_version or 'not given'}"),
        ("models", str(header.num_models) if header.num_models > 1 else ""),
        ("weights", f"{human_bytes(found.weight_bytes)}, {found.num_constants} Const operators"),
        ("tasks", str(found.num_tasks)),
        ("SoC", found.soc_version or "none (not checked at loading)"),
        ("framework", found.framework),
        ("compiler", found.tool_version),
        ("command", found.cmdline),
    ]


def _table(*headings: tuple[str, str]) -> Table:
    """Return an empty table; each heading comes with its justification."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title, justify in headings:
        if justify == "right":
            table.add_column(title, justify="right", no_wrap=True)
        else:
            table.add_column(title, overflow="fold")
    return table


def _partition_table(rows: Sequence[PartitionRow]) -> Table:
    many = any(row.model for row in rows)
    headings = [("type", "left"), ("offset", "right"), ("size", "right"), ("", "right")]
    table = _table(*([("model", "right")] if many else []), *headings)
    for row in rows:
        cells = [row.type, str(row.offset), str(row.nbytes), human_bytes(row.nbytes)]
        table.add_row(*([str(row.model)] if many else []), *map(Text, cells))
    return table


def group_tensors(rows: Sequence[TensorRow]) -> list[list[TensorRow]]:
    """Join three or more neighbours that differ only in the numbers of their names.

    A model has a key and a value cache a layer; one line for all of them is enough.
    """
    groups: list[list[TensorRow]] = []
    for _, members in groupby(rows, key=_without_numbers):
        same = list(members)
        groups.extend([same] if len(same) > 2 else [[row] for row in same])
    return groups


def _without_numbers(row: TensorRow) -> TensorRow:
    return replace(row, name=re.sub(r"\d+", "#", row.name))


def _tensor_table(rows: Sequence[TensorRow]) -> RenderableType:
    if not rows:
        return Text("none")
    table = _table(
        ("#", "right"), ("name", "left"), ("dtype", "left"), ("shape", "left"), ("size", "right")
    )
    place = 0
    for group in group_tensors(rows):
        row = group[0]
        shape = ", ".join("?" if extent < 0 else str(extent) for extent in row.shape)
        layout = "" if row.format in ("ND", "") else f" {row.format}"
        is_many = len(group) > 1
        name = f"{row.name} … {group[-1].name} ({len(group)})" if is_many else row.name
        size = "dynamic" if any(extent < 0 for extent in row.shape) else human_bytes(row.nbytes)
        table.add_row(str(place), Text(name), row.dtype, Text(f"[{shape}]{layout}"), size)
        place += len(group)
    return table


def _operator_title(found: OmDescription) -> str:
    total = sum(count for _, count in found.operators)
    graphs = f" in {found.num_graphs} graphs" if found.num_graphs > 1 else ""
    return f"Operators ({total}{graphs})"


def _operator_columns(operators: Sequence[tuple[str, int]]) -> RenderableType:
    width = max((len(str(count)) for _, count in operators), default=1)
    cells = [Text(f"{count:>{width}} {kind}") for kind, count in operators]
    return Columns(cells, padding=(0, 3), column_first=True)
