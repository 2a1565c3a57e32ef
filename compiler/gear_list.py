"""Gears as ATC's --dynamic_dims takes them: parsing, all the rules at once, and writing.

A gear gives one number for every -1 of the model's inputs, in the order of --input_shape. ATC
refuses a bad list only after the conversion has begun, and tersely; so it is refused here first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..runtime.packed_batch import step_symbols
from .option_error import OptionError
from .target_records import GearLimits

_PAIR = 2  # numbers of a gear as people write it: T, B
_LEAST_ROWS = 2  # of the largest gear: one for a sequence, one for the padding

DimGear = tuple[int, ...]  # one number for each -1


class GearError(OptionError):
    """A gear list that ATC would refuse; `problems` holds every broken rule with its gear."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class GearList:
    """A legal list, in the order given, and what was changed in it."""

    gears: tuple[DimGear, ...]
    notes: tuple[str, ...] = ()

    @property
    def dynamic_dims(self) -> str:
        """The value of --dynamic_dims."""
        return format_gears(self.gears)


@dataclass(frozen=True)
class PairRules:
    """What pairs (T,B) are held against beside ATC's own limits."""

    limits: GearLimits
    most_tokens: int | None = None  # of a step, None = any
    tokens_rule: str = ""  # the rule behind most_tokens, in words


@dataclass(frozen=True)
class PairList:
    """Legal pairs (T,B) in the order given, and what was changed in them."""

    pairs: tuple[tuple[int, int], ...]
    notes: tuple[str, ...] = ()


def parse_pairs(text: str, rules: PairRules) -> PairList:
    """Return the pairs (T,B) of --gears; one alone is a static model, not a gear to ATC.

    Raises GearError with all problems: those of `parse_gears`, more tokens than a step may have,
    fewer tokens than sequences, no row in the largest for the sequence that owns the padding.
    """
    found = parse_gears(text, _PAIR, replace(rules.limits, minimum=1))
    pairs = tuple((gear[0], gear[1]) for gear in found.gears)
    problems = []
    for tokens, seqs in pairs:
        if rules.most_tokens is not None and tokens > rules.most_tokens:
            problems.append(f"gear {tokens},{seqs} has {tokens} tokens: {rules.tokens_rule}")
        if tokens < seqs:
            problems.append(
                f"gear {tokens},{seqs} has fewer tokens than sequences: a sequence of a step has "
                "at least one token (a gear is T,B: tokens, then sequences)"
            )
    tokens, seqs = max(pairs)
    if seqs < _LEAST_ROWS:
        problems.append(
            f"gear {tokens},{seqs} is the largest and has one sequence: a step with fewer tokens "
            "is padded with a second one. Give it at least 2 sequences"
        )
    if problems:
        raise GearError(problems)
    return PairList(pairs, found.notes)


def parse_gears(text: str, num_dynamic: int, limits: GearLimits) -> GearList:
    """Return the gears in text such as "16,1;32,2" for a model with `num_dynamic` -1 dims.

    Duplicates are removed with a note. Raises GearError with all problems: too few or too many
    gears, a gear with another number of values than there are -1s, or a value that is not a whole
    number above 0.
    """
    problems: list[str] = []
    if num_dynamic < 1:
        problems.append(f"the model has no -1 dimension, so no gear applies ({limits.source})")
    parts = [part.strip() for part in text.strip().removesuffix(";").split(";")]
    gears: list[DimGear] = []
    for number, part in enumerate(parts, start=1):
        gear, problem = _parse_gear(part, number, num_dynamic, limits)
        problems += problem
        if gear:
            gears.append(gear)
    unique = tuple(dict.fromkeys(gears))
    notes = _duplicate_notes(gears)
    if len(gears) == len(parts):  # a count over broken gears would mislead
        problems += _count_problems(unique, notes, limits)
    if problems:
        raise GearError(problems)
    return GearList(unique, notes)


def _parse_gear(
    part: str, number: int, num_dynamic: int, limits: GearLimits
) -> tuple[DimGear | None, list[str]]:
    where = f"gear {number} ({part!r})"
    values = [value.strip() for value in part.split(",")] if part else []
    problems = []
    if len(values) != num_dynamic:
        pair = " (in --gears T,B: tokens, then sequences)" if num_dynamic == _PAIR else ""
        problems.append(
            f"{where} has {len(values)} value(s), must have {num_dynamic}: exactly one number for "
            f"each open dimension{pair} ({limits.source})"
        )
    for value in values:
        if value == "-1":
            problems.append(
                f"{where} still has a -1: every value of a gear is a fixed size ({limits.source})"
            )
        elif not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < 1:
            problems.append(
                f"{where}: {value!r} is not a size, must be a whole number above 0 "
                f"({limits.source}; no dimension may be 0)"
            )
    return (None, problems) if problems else (tuple(int(value) for value in values), [])


def _duplicate_notes(gears: Sequence[DimGear]) -> tuple[str, ...]:
    seen: dict[DimGear, int] = {}
    for gear in gears:
        seen[gear] = seen.get(gear, 0) + 1
    return tuple(
        f"gear {format_gears([gear])!r} was given {count} times and is kept once"
        for gear, count in seen.items()
        if count > 1
    )


def _count_problems(
    unique: Sequence[DimGear], notes: Sequence[str], limits: GearLimits
) -> list[str]:
    count = len(unique)
    if limits.minimum <= count <= limits.maximum:
        return []
    after = f" ({'; '.join(notes)})" if notes else ""
    given = f"one gear, {format_gears(unique)!r}{after}" if count == 1 else f"{count} gears{after}"
    surplus = unique[limits.maximum :]
    if surplus:
        given += f", the first too many is {format_gears(surplus[:1])!r}"
    return [
        f"{given}: must be {limits.minimum} to {limits.maximum} different gears "
        f"({limits.source}). "
        + ("Give fewer." if surplus else "For one shape compile a static model.")
    ]


def format_gears(gears: Sequence[DimGear]) -> str:
    """Return gears as --dynamic_dims wants them: "16,1;32,2"."""
    return ";".join(",".join(str(value) for value in gear) for gear in gears)


def dynamic_symbols(shapes: Mapping[str, Sequence[int | str]]) -> tuple[str, ...]:
    """Return the symbol of each -1 in the order ATC counts them: inputs in order, then axes.

    `shapes` maps input name to shape in the order of --input_shape; a str is a dynamic dim.
    """
    return tuple(dim for shape in shapes.values() for dim in shape if isinstance(dim, str))


def expand_gear(gear: tuple[int, int], symbols: Sequence[str]) -> DimGear:
    """Return one number for each symbol from a gear (T, B).

    Symbols: T tokens, B rows of the block table, B+1 entries of cu_seqlens, R logits rows (= B).
    Raises GearError for another symbol.
    """
    tokens, seqs = gear
    known = step_symbols(tokens, seqs, seqs)
    unknown = [symbol for symbol in symbols if symbol not in known]
    if unknown:
        raise GearError([f"dimension {unknown[0]!r} has no gear: known are {', '.join(known)}"])
    return tuple(known[symbol] for symbol in symbols)


def dims_problem(shapes: Mapping[str, Sequence[int | str]], limits: GearLimits) -> str | None:
    """Return why `set_input_dynamic_dims` cannot address these inputs, None when it can.

    It takes all dims of all inputs, the fixed ones too, in one structure with a fixed number of
    places: a cache input per layer and tensor fills it quickly.
    """
    ranks = {name: len(shape) for name, shape in shapes.items()}
    total = sum(ranks.values())
    if total <= limits.total_dims:
        return None
    return (
        f"{len(ranks)} inputs have {total} dims together, a geared model may have at most "
        f"{limits.total_dims} ({limits.dims_source}). Give the caches as one pool (--cache-write "
        "rows), or compile a static or range model."
    )
