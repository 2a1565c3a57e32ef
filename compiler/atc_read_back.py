"""An OM that ATC wrote against what was asked for: chip, inputs, outputs, gears.

Used after a conversion and by `--from-om`, where the OM comes from another machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..runtime.acl.constants import GEAR_INPUT_NAME
from ..runtime.om_file import OmFormatError
from ..runtime.om_file.description import OmDescription, TensorRow, describe_om
from .target_records import Target
from .target_resolve import TargetError, resolve_target


@dataclass(frozen=True)
class ExpectedTensor:
    """One input or output of the graph given to ATC; a str in the shape was a -1."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class ExpectedOm:
    """What the OM must be."""

    target: Target
    inputs: Sequence[ExpectedTensor]
    outputs: Sequence[ExpectedTensor]
    num_gears: int = 0  # 0 = no gears


class ReadBackError(ValueError):
    """An OM is not the one that was asked for; `problems` holds every difference."""

    def __init__(self, path: Path, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        # Its name alone: what ATC wrote lies in a folder that is gone when this is read.
        lines = [f"{path.name} is not the OM that is wanted:", *self.problems]
        super().__init__("\n  ".join(lines))


def read_back_om(path: Path, expected: ExpectedOm) -> list[str]:
    """Return every difference between an OM and what was asked for; empty when there is none.

    A file that is no OM is one difference. Raises OSError if it cannot be read.
    """
    try:
        found = describe_om(path)
    except OmFormatError as error:
        return [str(error)]
    return [
        *_soc_problems(found, expected.target),
        *_input_problems(found, expected),
        *_output_problems(found.outputs, expected.outputs),
    ]


def require_om(path: Path, expected: ExpectedOm) -> None:
    """Raise ReadBackError with all differences, if there is any."""
    problems = read_back_om(path, expected)
    if problems:
        raise ReadBackError(path, problems)


def _soc_problems(found: OmDescription, target: Target) -> Iterator[str]:
    soc = found.soc_version
    if soc == target.name:
        return
    if not soc:
        yield f"it does not say for which chip it was made; {target.name} is wanted"
        return
    text = f"it was made for {soc}; {target.name} is wanted"
    try:
        same_family = resolve_target(soc).family.name == target.family.name
    except TargetError:
        same_family = False
    if same_family:
        yield f"{text} (same family, other memory or cores): use --target {soc}, or compile again"
    else:
        yield f"{text}: a loader refuses it or its kernels are absent; compile it for {target.name}"


def _input_problems(found: OmDescription, expected: ExpectedOm) -> Iterator[str]:
    rows = {row.name: row for row in found.inputs if row.name != GEAR_INPUT_NAME}
    for tensor in expected.inputs:
        row = rows.pop(tensor.name, None)
        if row is None:
            listed = ", ".join(row.name for row in found.inputs)
            yield f"input {tensor.name!r} is absent; the OM has {listed}"
        else:
            yield from _tensor_problems(f"input {tensor.name!r}", row, tensor)
    for name in rows:
        yield f"input {name!r} of the OM was not asked for"
    has_gears = bool(found.gears) or any(row.name == GEAR_INPUT_NAME for row in found.inputs)
    if expected.num_gears and not has_gears:
        yield f"{expected.num_gears} gears were asked for, but the OM has none"
    if has_gears and not expected.num_gears:
        yield f"the OM has gears ({'; '.join(found.gears)}), none were asked for"


def _output_problems(
    rows: Sequence[TensorRow], expected: Sequence[ExpectedTensor]
) -> Iterator[str]:
    """Outputs are matched by order: ATC names them after nodes, `node:index:tensor`."""
    if len(rows) != len(expected):
        found = ", ".join(row.name for row in rows)
        wanted = ", ".join(tensor.name for tensor in expected)
        yield f"it has {len(rows)} output(s), {found}; wanted are {len(expected)}, {wanted}"
        return
    for row, tensor in zip(rows, expected):
        parts = row.name.split(":")
        if len(parts) == 3 and parts[2] and parts[2] != tensor.name:
            yield f"output {row.name!r} is where {tensor.name!r} is wanted"
        yield from _tensor_problems(f"output {tensor.name!r}", row, tensor)


def _tensor_problems(what: str, row: TensorRow, wanted: ExpectedTensor) -> Iterator[str]:
    if row.dtype != wanted.dtype:
        yield (
            f"{what} is {row.dtype}, must be {wanted.dtype}: was it compiled with "
            "--precision_mode_v2=origin?"
        )
    if not _shapes_agree(row.shape, wanted.shape):
        yield f"{what} has shape {list(row.shape)}, must be {list(wanted.shape)}"


def _shapes_agree(found: Sequence[int], wanted: Sequence[int | str]) -> bool:
    """A symbol agrees with -1 and with any size (a geared OM may state its largest)."""
    return len(found) == len(wanted) and all(
        isinstance(said, str) or said == size for size, said in zip(found, wanted)
    )


def expected_tensors(
    shapes: Mapping[str, Sequence[int | str]], dtypes: Mapping[str, str]
) -> tuple[ExpectedTensor, ...]:
    """Return what to expect of tensors given their shapes and dtypes by name."""
    return tuple(ExpectedTensor(name, dtypes[name], tuple(shape)) for name, shape in shapes.items())
