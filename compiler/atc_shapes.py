"""Input shapes as ATC takes them: --input_shape, and the order of its -1s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_RESERVED = (":", ";", ",")  # separators of --input_shape


class AtcShapeError(ValueError):
    """Input shapes that cannot be written for ATC."""


def fix_symbols(
    shapes: Mapping[str, Sequence[int | str]], fixed: Mapping[str, int]
) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes with every symbol in `fixed` replaced by its size; others stay."""
    return {
        name: tuple(fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in shape)
        for name, shape in shapes.items()
    }


def input_shape_option(shapes: Mapping[str, Sequence[int | str]]) -> str:
    """Return the value of --input_shape: names in order, symbols as -1.

    >>> input_shape_option({"input_ids": ("T",), "block_table": ("B", 32)})
    'input_ids:-1;block_table:-1,32'

    Raises AtcShapeError for a name with a separator in it, or a size below 1.
    """
    parts = []
    for name, shape in shapes.items():
        bad = [mark for mark in _RESERVED if mark in name]
        if bad or not name:
            raise AtcShapeError(
                f"input {name!r} cannot be named in --input_shape: ':', ';' and ',' separate its "
                "parts (ATC option --input_shape). Rename the input."
            )
        small = [dim for dim in shape if isinstance(dim, int) and dim < 1]
        if small:
            raise AtcShapeError(
                f"input {name!r} has shape {list(shape)}: every size must be at least 1 (E10011). "
                "Give the symbol a size or a gear."
            )
        parts.append(f"{name}:" + ",".join("-1" if isinstance(d, str) else str(d) for d in shape))
    return ";".join(parts)
