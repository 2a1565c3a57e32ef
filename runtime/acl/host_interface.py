"""What an OM file says about its own inputs, outputs and gears.

Three kinds of OM, two executors on the chip: `static` and `gear` models have every size at load
time; a `range` model has -1 extents and is told each run's shapes. A gear model's compiled shapes
are in the model's attributes (host artefacts):

    _pagedom_gears         list_list_int, a row a gear: values of the -1 extents, inputs in order
    _pagedom_gear_outputs  the same for the outputs (optional; without it sizes are unknown)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ..dtypes import DType
from ..dtypes import dtype as dtype_named
from ..om_file.ge_graph import ListListInt
from ..om_file.model_def import ModelDef
from ..om_file.om_writer import output_names
from .constants import GEAR_INPUT_NAME
from .error_table import PARSE_MODEL
from .executor import UnsoundModelError
from .host_dataset import Shape

GEARS_ATTR = "_pagedom_gears"
GEAR_OUTPUTS_ATTR = "_pagedom_gear_outputs"
Mode = Literal["static", "gear", "range"]


@dataclass(frozen=True)
class Io:
    """One input or output as compiled: -1 = known at run time."""

    name: str
    dtype: DType
    dims: Shape

    @property
    def is_dynamic(self) -> bool:
        """Whether an extent is known only at run time."""
        return any(extent < 0 for extent in self.dims)

    def nbytes(self, dims: Shape) -> int:
        """Bytes of a tensor with these dims; 0 where an extent is unknown."""
        return 0 if any(extent < 0 for extent in dims) else math.prod(dims) * self.dtype.itemsize

    def accepts(self, dims: Shape) -> bool:
        """Whether dims agree with every fixed extent."""
        return len(dims) == len(self.dims) and all(
            given >= 0 and fixed in (-1, given) for given, fixed in zip(dims, self.dims)
        )


@dataclass(frozen=True)
class Gear:
    """One compiled set of shapes; `outputs` keeps -1 where the file does not tell.

    extents: what stands for -1, inputs in order: what GE writes into the shape buffer.
    """

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    extents: tuple[int, ...]


@dataclass(frozen=True)
class ModelInterface:
    """Inputs and outputs in index order; `gear_input`: index of GE's hidden input, or -1."""

    mode: Mode
    inputs: tuple[Io, ...]
    outputs: tuple[Io, ...]
    gears: tuple[Gear, ...] = ()
    gear_input: int = -1
    weight_bytes: int = 0

    @classmethod
    def of(cls, om: Any) -> ModelInterface:
        """Read the interface of an open om_reader.OmFile; raises UnsoundModelError."""
        definition: ModelDef = om.models[0].model_def
        inputs = tuple(
            Io(node.name, dtype_named(node.output_descs[0].dtype), node.output_descs[0].shape)
            for node in definition.graph.data_nodes
        )
        outputs = tuple(_outputs(definition))
        rows = _rows(definition.attrs.get(GEARS_ATTR))
        if rows:
            plain = cls._with_gears(inputs, outputs, rows, definition.attrs)
        else:
            dynamic = any(io.is_dynamic for io in inputs)
            plain = cls("range" if dynamic else "static", inputs, outputs)
        return replace(plain, weight_bytes=len(om.models[0].weights))

    @classmethod
    def _with_gears(
        cls,
        inputs: tuple[Io, ...],
        outputs: tuple[Io, ...],
        rows: Sequence[Sequence[int]],
        attrs: dict[str, Any],
    ) -> ModelInterface:
        names = [io.name for io in inputs]
        if GEAR_INPUT_NAME not in names:
            raise UnsoundModelError(f"a gear model has no input {GEAR_INPUT_NAME!r}", PARSE_MODEL)
        output_rows: list[tuple[int, ...] | None] = [*_rows(attrs.get(GEAR_OUTPUTS_ATTR))]
        output_rows = output_rows or [None for _ in rows]
        if len(output_rows) != len(rows):
            raise UnsoundModelError(
                f"{len(rows)} gears, but {len(output_rows)} rows of {GEAR_OUTPUTS_ATTR}",
                PARSE_MODEL,
            )
        gears = tuple(
            Gear(_substitute(inputs, row), _substitute(outputs, output_row), tuple(row))
            for row, output_row in zip(rows, output_rows)
        )
        return cls("gear", inputs, outputs, gears, names.index(GEAR_INPUT_NAME))

    @cached_property
    def largest_gear(self) -> int:
        """Index of the gear with the most input bytes: what runs when none is set."""
        sizes = [
            sum(io.nbytes(dims) for io, dims in zip(self.inputs, gear.inputs))
            for gear in self.gears
        ]
        return sizes.index(max(sizes))

    def shape_content(self, gear: int, nbytes: int) -> bytes:
        """Return what GE writes into a shape buffer of this many bytes, b"" if that is too small.

        64-bit numbers where they fit, else 32-bit ones (GeExecutor::SetDynamicDims).
        """
        kind = self._shape_kind(nbytes)
        return b"" if kind is None else np.array(self.gears[gear].extents, kind).tobytes()

    def gear_in(self, content: bytes) -> int | None:
        """Return the index of the gear that a shape buffer holds, None if it holds none."""
        kind = self._shape_kind(len(content))
        if kind is None:
            return None
        length = np.dtype(kind).itemsize * len(self.gears[0].extents)
        return self._gear_by_content.get(content[:length])

    def _shape_kind(self, nbytes: int) -> type[np.int32 | np.int64] | None:
        count = len(self.gears[0].extents)
        return np.int64 if nbytes >= 8 * count else np.int32 if nbytes >= 4 * count else None

    @cached_property
    def _gear_by_content(self) -> dict[bytes, int]:
        kinds = (np.int32, np.int64)
        return {
            np.array(gear.extents, kind).tobytes(): index
            for index, gear in enumerate(self.gears)
            for kind in kinds
        }

    def input_bytes(self, index: int) -> int:
        """Bytes of an input: the largest gear's, 0 for an unknown shape."""
        io = self.inputs[index]
        if self.mode == "gear":
            return max(io.nbytes(gear.inputs[index]) for gear in self.gears)
        return io.nbytes(io.dims)

    def output_bytes(self, index: int) -> int:
        """Bytes of an output: the largest gear's, 0 for an unknown shape."""
        io = self.outputs[index]
        if self.mode == "gear":
            return max(io.nbytes(gear.outputs[index]) for gear in self.gears)
        return io.nbytes(io.dims)

    def gear_dims(self, gear: Gear) -> list[int]:
        """All extents of all inputs that a user gives, in order: one number list a gear."""
        return [
            extent
            for index, dims in enumerate(gear.inputs)
            if index != self.gear_input
            for extent in dims
        ]

    @property
    def compiled_dims(self) -> list[int]:
        """The same list with -1 where gears differ."""
        return [
            extent
            for index, io in enumerate(self.inputs)
            if index != self.gear_input
            for extent in io.dims
        ]


def _outputs(definition: ModelDef) -> Iterable[Io]:
    graph = definition.graph
    edges = [edge for edge in graph.net_output.edges() if edge is not None and not edge.is_control]
    for edge, name in zip(edges, output_names(definition)):
        desc = graph.input_desc(f"{edge.producer}:{edge.index}")
        yield Io(name, dtype_named(desc.dtype), desc.shape)


def _rows(value: Any) -> list[tuple[int, ...]]:
    if value is None:
        return []
    rows = value.rows if isinstance(value, ListListInt) else value
    return [tuple(int(number) for number in row) for row in rows]


def _substitute(ios: Sequence[Io], row: Sequence[int] | None) -> tuple[Shape, ...]:
    if row is None:
        return tuple(io.dims for io in ios)
    wanted = sum(extent < 0 for io in ios for extent in io.dims)
    if wanted != len(row):
        raise UnsoundModelError(
            f"gear {list(row)} has {len(row)} numbers for {wanted} extents of -1", PARSE_MODEL
        )
    values = iter(row)
    return tuple(tuple(next(values) if extent < 0 else extent for extent in io.dims) for io in ios)
