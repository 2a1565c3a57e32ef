"""What ATC is asked for, and the command line that asks it: a list, never a shell string."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from .atc_shapes import input_shape_option
from .gear_list import GearList
from .target_records import Target
from .target_rules import version_key

FRAMEWORK_ONNX = 5
ONE_FILE, ONE_FILE_CANN = 2, "9.0.0"  # of external_weight, and the release it came with
LOG_LEVELS = ("debug", "info", "warning", "error", "null")
PRECISIONS = (
    "fp16",
    "origin",
    "cube_fp16in_fp32out",
    "mixed_float16",
    "mixed_bfloat16",
    "cube_hif8",
    "mixed_hif8",
)
# What --precision_mode calls the same, for an atc without --precision_mode_v2.
_OLD_PRECISION = {
    "fp16": "force_fp16",
    "origin": "must_keep_origin_dtype",
    "cube_fp16in_fp32out": "cube_fp16in_fp32out",
    "mixed_float16": "allow_mix_precision_fp16",
    "mixed_bfloat16": "allow_mix_precision_bf16",
}
_OUTPUT_TYPE = re.compile(r"[A-Z0-9]+|[^;:]+:\d+:[A-Z0-9]+(;[^;:]+:\d+:[A-Z0-9]+)*")


class AtcOptionError(ValueError):
    """Options that ATC cannot take together, or that this CANN does not know."""


@dataclass(frozen=True)
class AtcOptions:
    """One conversion, apart from its files.

    `shapes` has every input in the graph's order; a str in a shape is a -1, which needs gears or
    makes a model of shape ranges.
    """

    target: Target
    shapes: Mapping[str, Sequence[int | str]]
    gears: GearList | None = None
    device_tiling: bool = False  # attention lengths are inputs of a static graph
    precision: str = "origin"  # keeps the graph's dtypes; ATC's own default turns all into fp16
    external_weight: int = 0  # 0 in the OM, 1 one file a weight, 2 one file
    output_type: str | None = None
    op_cache: Path | None = None  # folder of compiled kernels, kept between conversions
    deterministic: bool = False
    log_level: str = "error"

    def __post_init__(self) -> None:
        _check_value("precision", self.precision, PRECISIONS)
        _check_value("log_level", self.log_level, LOG_LEVELS)
        _check_value("external_weight", self.external_weight, (0, 1, 2))
        if self.output_type is not None and not _OUTPUT_TYPE.fullmatch(self.output_type):
            raise AtcOptionError(
                f"output_type is {self.output_type!r}; must be a type such as FP32, or "
                "'node:0:FP16' parts with ';' between (ATC option --output_type)"
            )
        _check_shapes(self)

    @property
    def is_range(self) -> bool:
        """Whether a dim stays open at run time."""
        return self.gears is None and _has_symbol(self.shapes)


@dataclass(frozen=True)
class _Flag:
    """One option of the command line, and what to do on an atc that does not know it."""

    name: str
    value: str
    basic: bool = False  # known to every atc
    needed: str = ""  # why the conversion cannot do without it; "" = it can
    min_cann: str = ""  # oldest release known to have it


@dataclass(frozen=True)
class AtcCommand:
    """A command line, and what was left out or replaced in it, to be shown once."""

    argv: tuple[str, ...]
    notes: tuple[str, ...] = ()


def build_command(
    atc: Path, onnx: Path, output: Path, options: AtcOptions, known: AbstractSet[str] | None = None
) -> AtcCommand:
    """Return the command that compiles `onnx` to `output` + ".om".

    Args:
        atc: the program.
        output: path without suffix; ATC appends `.om` or `_linux_<arch>.om`.
        known: names of the options that `atc --help` lists; None = take all to be known.

    Raises:
        AtcOptionError: this atc lacks an option that the model needs.
    """
    notes: list[str] = []
    argv = [str(atc), f"--model={onnx}", f"--output={output}"]
    for flag in _flags(options):
        kept = _kept(flag, known, options, notes)
        if kept is not None:
            argv.append(kept)
    return AtcCommand(tuple(argv), tuple(notes))


def cache_terms(options: AtcOptions) -> tuple[str, ...]:
    """Return the options that decide what comes out, without paths, for the cache's key."""
    kept = [flag for flag in _flags(options) if not flag.name.startswith(("op_compiler", "log"))]
    return tuple(f"--{flag.name}={flag.value}" for flag in kept)


def check_cann_version(options: AtcOptions, version: str) -> None:
    """Raise AtcOptionError, naming all, for options newer than a release; "" passes."""
    if not version:
        return
    too_new = [
        f"--{flag.name}={flag.value} needs CANN {flag.min_cann}"
        for flag in _flags(options)
        if flag.min_cann and version_key(version) < version_key(flag.min_cann)
    ]
    if too_new:
        raise AtcOptionError(
            f"CANN {version} is too old: " + "; ".join(too_new) + ". Install a newer CANN or drop "
            "the option."
        )


def _flags(options: AtcOptions) -> list[_Flag]:
    rows = [
        _Flag("mode", "0", basic=True),
        _Flag("framework", str(FRAMEWORK_ONNX), basic=True),
        _Flag("soc_version", options.target.name, basic=True),
        _Flag("input_format", "ND", basic=True),
        _Flag("input_shape", input_shape_option(options.shapes), basic=True),
    ]
    if options.gears is not None:
        rows.append(_Flag("dynamic_dims", options.gears.dynamic_dims, basic=True))
    keeps = "without it ATC changes the graph's dtypes"
    rows.append(_Flag("precision_mode_v2", options.precision, needed=keeps))
    if options.device_tiling:
        sink = "without it attention leaves the static graph and is launched from the host"
        rows.append(_Flag("tiling_schedule_optimize", "1", needed=sink))
    if options.external_weight:
        newer = ONE_FILE_CANN if options.external_weight == ONE_FILE else ""
        where = "the weights are wanted outside the OM"
        value = str(options.external_weight)
        rows.append(_Flag("external_weight", value, needed=where, min_cann=newer))
    if options.output_type is not None:
        rows.append(_Flag("output_type", options.output_type, basic=True))
    if options.deterministic:
        rows.append(_Flag("deterministic", "1", needed="the same result each run is wanted"))
    if options.op_cache is not None:
        rows.append(_Flag("op_compiler_cache_mode", "enable"))
        rows.append(_Flag("op_compiler_cache_dir", str(options.op_cache)))
    rows.append(_Flag("log", options.log_level, basic=True))
    return rows


def _kept(
    flag: _Flag, known: AbstractSet[str] | None, options: AtcOptions, notes: list[str]
) -> str | None:
    if flag.basic or known is None or flag.name in known:
        return f"--{flag.name}={flag.value}"
    if flag.name == "precision_mode_v2" and options.precision in _OLD_PRECISION:
        old = f"--precision_mode={_OLD_PRECISION[options.precision]}"
        notes.append(f"this atc has no --precision_mode_v2: {old} is used instead")
        return old
    if flag.needed:
        raise AtcOptionError(
            f"this atc does not know --{flag.name}={flag.value}, and {flag.needed}. "
            "Install a newer CANN, or drop the option."
        )
    notes.append(f"this atc does not know --{flag.name}: left out")
    return None


def _check_shapes(options: AtcOptions) -> None:
    family = options.target.family
    symbols = sum(isinstance(dim, str) for shape in options.shapes.values() for dim in shape)
    if options.gears is not None:
        wrong = [gear for gear in options.gears.gears if len(gear) != symbols]
        if wrong or not symbols:
            raise AtcOptionError(
                f"gears {options.gears.dynamic_dims!r} give {len((wrong or [()])[0])} number(s) a "
                f"gear, the input shapes have {symbols} dim(s) of -1 ({family.gears.source})"
            )
    if options.is_range and not family.feature("range shapes").supported:
        raise AtcOptionError(
            f"{options.target.name} takes no open dims ({family.feature('range shapes').source}). "
            "Give sizes or gears."
        )
    if options.device_tiling and not _has_feature(options.target, "tiling on device"):
        raise AtcOptionError(
            f"{options.target.name} has no tiling on the device (ATC option "
            "--tiling_schedule_optimize: A2, A3, 950, 310P yes; 310B, 910 no). "
            "Use the composed lowering."
        )
    if options.device_tiling and options.is_range:
        raise AtcOptionError(
            "tiling on the device needs a static model, but some dims are open (ATC option "
            "--tiling_schedule_optimize). Give sizes or gears."
        )


def _has_feature(target: Target, name: str) -> bool:
    try:
        return target.family.feature(name).supported
    except KeyError:
        return False


def _has_symbol(shapes: Mapping[str, Sequence[int | str]]) -> bool:
    return any(isinstance(dim, str) for shape in shapes.values() for dim in shape)


def _check_value(name: str, value: object, allowed: Sequence[object]) -> None:
    if value not in allowed:
        listed = ", ".join(str(item) for item in allowed)
        raise AtcOptionError(f"{name} is {value!r}; must be one of {listed} (ATC options)")
