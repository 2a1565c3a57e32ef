"""The fake's command line: what is refused, with which code and text, in which order."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

TITLES = {"E10016": "Invalid_Argument_Operator_Name", "E10055": "Not_Supported"}
RANGES = {
    "mode": ("0", "1", "3", "5", "6", "30"),
    "framework": ("0", "1", "3", "5"),
    "external_weight": ("0", "1", "2"),
    "deterministic": ("0", "1"),
    "log": ("debug", "info", "warning", "error", "null"),
    "op_compiler_cache_mode": ("enable", "disable", "force"),
    "precision_mode_v2": ("fp16", "origin", "mixed_float16", "mixed_bfloat16"),
    "precision_mode": ("force_fp16", "must_keep_origin_dtype", "allow_mix_precision_fp16"),
}
FREE = (
    *("help", "model", "output", "soc_version", "input_format", "input_shape", "dynamic_dims"),
    *("dynamic_batch_size", "input_shape_range", "om", "json", "output_type"),
    *("tiling_schedule_optimize", "op_compiler_cache_dir"),
)
SOCS = re.compile(r"Ascend(310P[1357]|310B[1-4]|910B[1-4]C?|910_93\d\d|950(PR|DT)_\w{4})")
PATH = re.compile(r"[\u4e00-\u9fa5A-Za-z0-9./_-]+")
PATH_REASON = "The path can only contain 'a-z' 'A-Z' '0-9' '-' '.' '_' and Chinese characters."


class UsageError(Exception):
    """The command line cannot be read; real atc says so on stderr alone."""


class RefusalError(Exception):
    """An error of the error manager, printed after the failure line."""

    def __init__(self, code: str, message: str, solution: str = "") -> None:
        title = TITLES.get(code, "Invalid_Argument")
        more = f"\n        Solution: {solution}" if solution else ""
        super().__init__(f"{title}({code}): {message}{more}\n")


def say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


def bad_value(value: str, parameter: str, reason: str) -> RefusalError:
    text = f"Value {value} for parameter {parameter} is invalid. Reason: {reason}"
    return RefusalError("E10001", text, "Try again with a valid argument.")


def known() -> set[str]:
    old = os.environ.get("FAKE_ATC_UNKNOWN_OPTIONS", "")
    return {*RANGES, *FREE} - set(old.split(","))


def usage() -> str:
    return "usage: atc <args>\n" + "\n".join(f"  --{name}   text" for name in sorted(known()))


def parse(argv: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for word in argv:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            raise UsageError(f"Non-option parameter: {word}")
        if name not in known():
            raise UsageError(f"unknown command line flag '{name}'")
        if not equals and name != "help":
            raise UsageError(f"flag '--{name}' is missing its argument")
        if name in RANGES and value not in RANGES[name]:
            raise _out_of_range(name, value)
        options[name] = value or "1"
    return options


def _out_of_range(name: str, value: str) -> RefusalError:
    if name == "log":
        return RefusalError("E10010", f"Value {value} for parameter --log is invalid.")
    if name in ("external_weight", "deterministic"):
        text = f"Value {value} for parameter --{name} is invalid. The value must be either 1 or 0."
        return RefusalError("E10006", text)
    if name == "framework":
        text = "0(Caffe) or 1(MindSpore) or 3(TensorFlow) or 5(Onnx)"
        return RefusalError("E10007", f"--framework is required. The value must be {text}.")
    allowed = " ".join(f"[{item}]" for item in RANGES[name])
    reason = f"The value is not within the range of values. The valid range is {allowed} ."
    return bad_value(value, f"--{name}", reason)


def check_conversion(options: dict[str, str]) -> None:
    """Check flags in the order of the real one: framework, format, required ones, paths, shapes."""
    if options.get("framework") != "5":
        raise _out_of_range("framework", options.get("framework", "-1"))
    if options.get("input_format", "NCHW") not in ("NCHW", "NCDHW", "ND"):
        raise bad_value(options["input_format"], "--input_format", "only support NCHW, NCDHW, ND")
    for name in ("soc_version", "output", "model"):
        if not options.get(name):
            more = "Another possible reason is that the values of some parameters are not enclosed"
            text = f"The required parameter --{name} for ATC is empty. {more} by quotation marks."
            raise RefusalError("E10054", text)
    if not SOCS.fullmatch(options["soc_version"]):
        raise bad_value(options["soc_version"], "--soc_version", "The soc version is unknown.")
    _check_paths(options)
    if {"precision_mode", "precision_mode_v2"} <= set(options):
        text = "Cannot configure both parameters precision_mode and precision_mode_v2"
        raise RefusalError("E10056", f"{text} simultaneously.")
    _check_shapes(options)


def _check_paths(options: dict[str, str]) -> None:
    model = Path(options["model"]).resolve()
    if not model.exists():
        reason = "realpath error, errmsg:No such file or directory"
        raise bad_value(options["model"], "--model", reason)
    if not PATH.fullmatch(str(model)):
        raise bad_value(options["model"], "--model", PATH_REASON)
    output = options["output"] + ".om"
    if not PATH.fullmatch(output):
        raise bad_value(output, "--output", PATH_REASON)
    if output.endswith("/.om"):
        raise RefusalError("E10022", f"Path {output} for --output has no file name.")
    Path(output).resolve().parent.mkdir(parents=True, exist_ok=True)


def shapes(options: dict[str, str]) -> dict[str, list[int]]:
    """Return --input_shape as numbers; -1 for an open dim or a range."""
    found: dict[str, list[int]] = {}
    for part in options.get("input_shape", "").split(";"):
        if not part:
            continue
        name, colon, dims = part.rpartition(":")
        if not colon or not name:
            reason = "The shape must contain name and value"
            raise RefusalError(
                "E10002", f"Value {part} for parameter --input_shape is invalid. Reason: {reason}."
            )
        numbers = ["-1" if "~" in dim else dim.strip() for dim in dims.split(",") if dim]
        if not all(re.fullmatch(r"-?\d+", number) for number in numbers):
            raise RefusalError("E10014", f"Value {dims} for parameter --input_shape is invalid.")
        found[name] = [int(number) for number in numbers]
    return found


def _check_shapes(options: dict[str, str]) -> None:
    gears, text = options.get("dynamic_dims"), options.get("input_shape", "")
    kinds = [k for k in ("dynamic_batch_size", "dynamic_dims", "input_shape_range") if k in options]
    if len(kinds) > 1:
        names = "--dynamic_batch_size, --dynamic_image_size, --input_shape_range, and"
        raise RefusalError("E10009", f"{names} --dynamic_dims are mutually exclusive.")
    if gears is not None and "~" in text:
        raise RefusalError("E10040", "the nodes must have -1 axes and cannot have '~'.")
    found = shapes(options)
    opened = sum(shape.count(-1) for shape in found.values())
    for name, shape in found.items():
        wrong = [size for size in shape if size == 0 or size < -1]
        if wrong:
            where = f"Value {name}:{shape} for parameter --input_shape is invalid."
            more = f"Shape values must be positive integers. The error value is {wrong[0]}."
            raise RefusalError("E10011", f"{where} {more}")
    if gears is not None:
        _check_gears(gears, opened)
    if "dynamic_batch_size" in options:
        _check_batch(found)


def _check_gears(text: str, opened: int) -> None:
    if opened == 0:
        reason = "At least one dim should be -1 when dynamic_dims is set."
        raise bad_value("0", "--input_shape's dynamic dim num", reason)
    gears = [gear.split(",") for gear in text.rstrip(";").split(";")]
    for gear in gears:
        if len(gear) != opened:
            if "FAKE_ATC_OLD_TEXTS" in os.environ:
                more = "exceeds the dimension count per profile in --dynamic_dims."
                raise RefusalError("E10045", f"The number of -1 axes in the --input_shape {more}")
            reason = "Each setting needs to be consistent with the number of -1 in the input shape."
            text = f"Value {text} for parameter --dynamic_dims is invalid. Reason: {reason}"
            raise RefusalError("E10003", text)
        for size in gear:
            if not size.isdigit():
                reason = "Dynamic dims must be a positive integer."
                raise bad_value(size, "--dynamic_dims", reason)
    start = "--dynamic_batch_size, --dynamic_image_size, or --dynamic_dims"
    if len(gears) < 2:
        raise RefusalError("E10035", f"{start} has {len(gears)} profiles, less than the minimum 2.")
    if len(gears) > 100:
        raise RefusalError("E10036", f"{start} has {len(gears)} profiles, above the maximum 100.")
    if any(int(size) == 0 for gear in gears for size in gear):
        raise RefusalError("E10038", "Dimension size 0 is invalid. It must be greater than 0.")
    if len({tuple(gear) for gear in gears}) != len(gears):
        raise RefusalError("E10039", f"The {start} argument have duplicate profiles.")


def _check_batch(found: dict[str, list[int]]) -> None:
    start = "--dynamic_batch_size is included, but"
    for name, shape in found.items():
        if not shape:
            raise RefusalError("E10012", f"{start} the dimension count of {name} is less than 1.")
        if -1 in shape[1:]:
            more = "When --dynamic_batch_size is included, only batch size N can be -1."
            raise RefusalError("E10018", f"Value -1 for shape {shape.index(-1)} is invalid. {more}")
    if not any(shape[0] == -1 for shape in found.values()):
        raise RefusalError("E10031", f"{start} none of the nodes has a batch size equaling -1.")
