"""The manifest against the model's own description: what the runtime fills, and where.

    manifest  input "kv_lens"  <- source kv_lens, int64 [B]
    model.om  input 6 "kv_lens"               int64 [-1]        agree -> BoundInput(index 6, ...)

Inputs are found by name, outputs by order (ATC renames outputs). A symbol of the manifest meets -1
in a model with ranges or gears, or a number that the model was compiled for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .acl.constants import GEAR_INPUT_NAME
from .acl.model_io import ModelIo, TensorIo
from .dtypes import DType
from .dtypes import dtype as dtype_of
from .manifest import CACHE_SOURCES, SYMBOLS, Binding, Manifest, OutputBinding

ROWS_SOURCE, ROWS_ROLE = "kv_rows_pool", "new_rows"


class OmModelError(ValueError):
    """The artefact and the model disagree, or a step does not fit the model."""


@dataclass(frozen=True)
class BoundInput:
    """An input of the model and the source that fills it."""

    index: int
    name: str
    source: str
    dtype: DType
    shape: tuple[int | str, ...]  # the manifest's
    dims: tuple[int, ...]  # the model's
    model_bytes: int  # as compiled, 0 = unknown

    @property
    def is_cache(self) -> bool:
        """Whether it is a page pool."""
        return self.source.partition(".")[0] in CACHE_SOURCES

    @property
    def is_dynamic(self) -> bool:
        """Whether the model must be told its shape."""
        return any(extent < 0 for extent in self.dims)

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of this shape."""
        return math.prod(shape) * self.dtype.itemsize

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise OmModelError if a step's shape contradicts what the model was compiled for."""
        if len(shape) != len(self.dims) or any(
            fixed not in (-1, given) for given, fixed in zip(shape, self.dims)
        ):
            raise OmModelError(
                f"input {self.name!r} gets shape {list(shape)}, but model.om was compiled for "
                f"{list(self.dims)} (-1 = any): change the step or compile the model again"
            )


@dataclass(frozen=True)
class BoundOutput:
    """An output of the model and its role."""

    index: int
    name: str
    role: str
    dtype: DType
    shape: tuple[int | str, ...]
    model_bytes: int  # as compiled, 0 = unknown

    def nbytes(self, symbols: Mapping[str, int]) -> int:
        """Bytes to allocate: as compiled, or for the largest extents that `symbols` gives."""
        largest = math.prod(resolve(self.shape, symbols)) * self.dtype.itemsize
        return self.model_bytes or largest


@dataclass(frozen=True)
class Bindings:
    """All inputs and outputs; `gear_input` is GE's hidden one or None."""

    inputs: tuple[BoundInput, ...]
    outputs: tuple[BoundOutput, ...]
    gear_input: TensorIo | None

    def output(self, role: str) -> BoundOutput | None:
        """Return the first output of a role."""
        return next((output for output in self.outputs if output.role == role), None)

    def input(self, source: str) -> BoundInput | None:
        """Return the input of a source."""
        return next((each for each in self.inputs if each.source == source), None)


def resolve(shape: tuple[int | str, ...], symbols: Mapping[str, int]) -> tuple[int, ...]:
    """Put numbers in the place of symbols."""
    return tuple(symbols[extent] if isinstance(extent, str) else extent for extent in shape)


def bind(manifest: Manifest, model: ModelIo) -> Bindings:
    """Match the manifest with the model; raises OmModelError that lists every difference."""
    constants = {"S": manifest.page_size, "M": manifest.table_width}
    problems = list(_problems(manifest, model, constants))
    if problems:
        raise OmModelError(
            "\n  ".join(
                [
                    "pagedom.json and model.om do not belong together:",
                    *problems,
                    "Compile the model again, or restore the folder from where it was copied.",
                ]
            )
        )
    by_name = {io.name: io for io in model.inputs}
    inputs = [_bound_input(binding, by_name[binding.name]) for binding in manifest.inputs]
    outputs = [_bound_output(*pair) for pair in zip(manifest.outputs, model.outputs)]
    return Bindings(tuple(inputs), tuple(outputs), model.gear_input)


def _bound_input(binding: Binding, io: TensorIo) -> BoundInput:
    return BoundInput(
        io.index,
        io.name,
        binding.source,
        dtype_of(binding.dtype),
        binding.shape,
        io.dims,
        io.nbytes,
    )


def _bound_output(binding: OutputBinding, io: TensorIo) -> BoundOutput:
    return BoundOutput(
        io.index, binding.name, binding.role, dtype_of(binding.dtype), binding.shape, io.nbytes
    )


def _problems(manifest: Manifest, model: ModelIo, constants: Mapping[str, int]) -> Iterator[str]:
    by_name = {io.name: io for io in model.inputs}
    for binding in manifest.inputs:
        io = by_name.pop(binding.name, None)
        if io is None:
            known = ", ".join(each.name for each in model.inputs)
            yield f"input {binding.name!r} is not in the model, whose inputs are {known}"
        else:
            yield from _differences(f"input {binding.name!r}", binding, io, constants)
    for name in by_name:
        if name != GEAR_INPUT_NAME:
            yield f"input {name!r} of the model is not in the manifest"
        elif not manifest.gears:
            yield "the model has gears, the manifest names none"
    yield from _row_problems(manifest)
    if len(manifest.outputs) != len(model.outputs):
        given = ", ".join(binding.name for binding in manifest.outputs)
        found = ", ".join(io.name for io in model.outputs)
        yield f"the manifest has outputs {given}; the model has {found}"
        return
    vocab_size = manifest.model.vocab_size
    for output, io in zip(manifest.outputs, model.outputs):
        if output.role == "logits" and output.shape[-1] != vocab_size:
            yield (
                f"output {output.name!r} has rows of {output.shape[-1]}, the manifest's vocabulary "
                f"has {vocab_size}"
            )
        yield from _differences(f"output {output.name!r}", output, io, constants)


def _row_problems(manifest: Manifest) -> Iterator[str]:
    """New rows and the pool they are copied to: one needs the other, in one size and dtype."""
    pools = [each for each in manifest.inputs if each.source == ROWS_SOURCE]
    rows = [each for each in manifest.outputs if each.role == ROWS_ROLE]
    if len(pools) != len(rows):
        yield (
            f"the manifest has {len(rows)} outputs of role {ROWS_ROLE!r} and {len(pools)} inputs "
            f"of source {ROWS_SOURCE!r}: one belongs to the other"
        )
    for pool, row in zip(pools, rows):
        sizes = [pool.shape[2:], row.shape[1:]]
        # [L, 2, K, D] may be folded on one side and not on the other.
        counts = [math.prod(int(each) for each in size if each not in SYMBOLS) for size in sizes]
        if pool.dtype != row.dtype or counts[0] != counts[1] or len(pool.shape) < 3:
            yield (
                f"output {row.name!r} {row.dtype} {list(row.shape)} has not the rows of input "
                f"{pool.name!r} {pool.dtype} {list(pool.shape)}"
            )


def _differences(
    what: str, binding: Binding | OutputBinding, io: TensorIo, constants: Mapping[str, int]
) -> Iterator[str]:
    agrees = len(binding.shape) == len(io.dims) and all(
        _extent_agrees(said, found, constants) for said, found in zip(binding.shape, io.dims)
    )
    if not agrees or io.dtype is None or io.dtype.name != binding.dtype:
        shape = ", ".join(str(extent) for extent in binding.shape)
        yield f"{what}: pagedom.json says {binding.dtype} [{shape}], model.om says {io}"


def _extent_agrees(said: int | str, found: int, constants: Mapping[str, int]) -> bool:
    number = constants.get(said) if isinstance(said, str) else said
    return found == -1 or number is None or number == found
