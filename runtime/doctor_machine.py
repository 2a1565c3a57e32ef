"""Python, packages, memory, cores and the environment variables that matter."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .doctor_findings import NOTE, OK, PROBLEM, WARNING, Finding, Surroundings, size

PACKAGE = "pagedom"


class Variable(NamedTuple):
    """An environment variable: why it matters, and whether its value is a path or several."""

    name: str
    why: str
    is_path: bool = False


VARIABLES = (
    Variable("ASCEND_HOME_PATH", "the CANN that is used", True),
    Variable("ASCEND_TOOLKIT_HOME", "the same, for older programs", True),
    Variable("ASCEND_OPP_PATH", "operators of CANN; missing or wrong gives 148049", True),
    Variable("ASCEND_AICPU_PATH", "operators that run on the chip's CPU", True),
    Variable("ASCEND_CUSTOM_OPP_PATH", "parser plugins for ATC, ours among them", True),
    Variable("ASCEND_RT_VISIBLE_DEVICES", "which devices a program sees; it counts from 0 again"),
    Variable("ASCEND_GLOBAL_LOG_LEVEL", "0 debug … 3 error, 4 off; 0 and 1 slow everything down"),
    Variable("ASCEND_SLOG_PRINT_TO_STDOUT", "1 mixes CANN's log into the output"),
    Variable("ASCEND_PROCESS_LOG_PATH", "where CANN logs; else ~/ascend/log", True),
    Variable("ASCEND_LOG_DEVICE_FLUSH_TIMEOUT", "0 ends a program up to 2 s sooner"),
    Variable("ASCEND_LAUNCH_BLOCKING", "1 makes every launch wait: for debugging only"),
    Variable("TE_PARALLEL_COMPILER", "processes that compile kernels; 1 where memory is short"),
    Variable("MAX_COMPILE_CORE_NUMBER", "cores of ATC; 1 where memory is short"),
    Variable("LD_LIBRARY_PATH", "where libascendcl.so and the driver's libraries are found", True),
    Variable("LD_PRELOAD", "libraries before all others; cures `static TLS block`", True),
    Variable("PYTHONPATH", "where `acl` is found", True),
    Variable("OMP_NUM_THREADS", "threads of numerical libraries"),
    Variable("OPENBLAS_NUM_THREADS", "threads of numpy's matrix products (oracle)"),
    Variable("PAGEDOM_CACHE", "where demo models and plugins are kept", True),
)

_OPTIONAL = ("torch", "torch_npu", "onnx", "onnx-ir", "onnxscript", "safetensors", "gguf")
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)\s*([^;]*)")


@dataclass(frozen=True)
class MachineState:
    """What an artefact is measured against: free memory in bytes (0 = unknown), openvino there."""

    free_bytes: int
    has_openvino: bool
    findings: tuple[Finding, ...]


def look_at_machine(here: Surroundings) -> MachineState:
    """Return what this machine and this python are."""
    free, memory = _memory(here)
    packages = list(_packages())
    openvino = _version("openvino")
    findings = (_python(), *packages, memory, _cores(here), *_variables(here))
    return MachineState(free, bool(openvino), tuple(findings))


def _python() -> Finding:
    seen = f"{platform.python_version()} on {platform.machine()}, {sys.executable}"
    if sys.version_info >= (3, 14):
        return Finding("python", WARNING, seen, "Tested are python 3.10 to 3.13.")
    return Finding("python", OK, seen)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _packages() -> Iterator[Finding]:
    try:
        needed = importlib.metadata.requires(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("packages", WARNING, f"{PACKAGE} is not installed", "pip install pagedom")
        return
    fine, problems = [f"{PACKAGE} {_version(PACKAGE)}"], []
    for text in needed:
        match = _REQUIREMENT.match(text)
        if match is None or "extra ==" in text:
            continue
        name, wanted = match[1], match[2].strip()
        version = _version(name)
        if not version:
            problems.append(f"{name} is not installed (needs {name}{wanted})")
        elif not satisfies(version, wanted):
            problems.append(f"{name} {version} is installed, pagedom needs {name}{wanted}")
        else:
            fine.append(f"{name} {version}")
    yield Finding("packages", OK, ", ".join(fine))
    for problem in problems:
        advice = f"pip install --upgrade {PACKAGE} (in this environment)."
        yield Finding("packages", PROBLEM, problem, advice)
    extra = [f"{name} {_version(name)}" for name in _OPTIONAL if _version(name)]
    seen = ", ".join(extra) or "none: run-om needs none of them, compile-model does"
    yield Finding("for compiling", OK if extra else NOTE, seen)


def satisfies(version: str, wanted: str) -> bool:
    """Whether a version meets ">=1.2", "==2026.4.*" or several of such, separated by commas."""
    return all(_meets(version, part.strip()) for part in wanted.split(",") if part.strip())


def _meets(version: str, condition: str) -> bool:
    match = re.match(r"(>=|<=|==|!=|~=|<|>)\s*(.+)", condition)
    if match is None:
        return True
    sign, limit = match[1], match[2]
    have, want = _numbers(version), _numbers(limit.removesuffix(".*"))
    if limit.endswith(".*"):
        same = have[: len(want)] == want
        return same if sign == "==" else not same
    width = max(len(have), len(want))
    have, want = have + (0,) * (width - len(have)), want + (0,) * (width - len(want))
    answers = {
        ">=": have >= want,
        "<=": have <= want,
        "==": have == want,
        "!=": have != want,
        "~=": have >= want,
        "<": have < want,
        ">": have > want,
    }
    return answers[sign]


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _memory(here: Surroundings) -> tuple[int, Finding]:
    text = here.read("/proc/meminfo")
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE))
    free, total = (int(fields.get(name, 0)) * 1024 for name in ("MemAvailable", "MemTotal"))
    limit = here.read("/sys/fs/cgroup/memory.max").strip()
    seen = f"{size(free)} of {size(total)} free"
    if limit.isdigit() and int(limit) < total:
        used = here.read("/sys/fs/cgroup/memory.current").strip()
        left = int(limit) - (int(used) if used.isdigit() else 0)
        free = max(0, min(free, left))
        seen = f"{size(free)} free below this container's limit of {size(int(limit))}"
    if not total:
        return 0, Finding("memory", NOTE, "this system does not say how much is free")
    if free < 2**30:
        advice = "Close other programs; a model needs its weights and its KV cache."
        return free, Finding("memory", WARNING, seen, advice)
    return free, Finding("memory", OK, seen)


def _cores(here: Surroundings) -> Finding:
    count = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else count
    flags = re.search(r"^flags\s*:(.*)$", here.read("/proc/cpuinfo"), re.MULTILINE)
    known = set(flags[1].split()) if flags else set()
    fast = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in known]
    seen = f"{usable} of {count} cores usable" + (f", {', '.join(fast)}" if fast else "")
    quota = here.read("/sys/fs/cgroup/cpu.max").split()
    if len(quota) == 2 and quota[0].isdigit():
        seen += f", at most {int(quota[0]) / int(quota[1]):.1f} at a time (container)"
    return Finding("cores", OK, seen)


def _variables(here: Surroundings) -> Iterator[Finding]:
    for variable in VARIABLES:
        value = here.environ.get(variable.name)
        if not value:
            continue
        seen = f"{value}  ({variable.why})"
        gone = [p for p in here.paths(variable.name) if p.startswith("/") and not Path(p).exists()]
        if variable.is_path and gone:
            advice = f"There is no {', '.join(gone[:3])}: source set_env.sh again, or drop it."
            yield Finding(f"${variable.name}", WARNING, seen, advice)
        else:
            yield Finding(f"${variable.name}", OK, seen)
