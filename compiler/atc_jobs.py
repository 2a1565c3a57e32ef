"""How many kernels ATC may compile at one time, from the memory that is free.

    main = 2 GiB + weights x (2 inside the OM, 1 outside)      the atc process itself
    jobs = (available RAM + half of the free swap - main) / 2 GiB,  within 1 and min(cores, 8)

ATC starts 8 compile processes by default whatever the machine has; on boards with 8 to 16 GB the
kernel's OOM killer then ends some of them and the conversion fails with a broken pipe. Users got
through with one process and swap. The figures per process are ours and cautious: none was measured
on a real ATC.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3
JOB_BYTES = 2 * GIB
MAIN_BYTES = 2 * GIB
MAX_JOBS = 8  # ATC's own default; TE_PARALLEL_COMPILER takes 1 to 32


@dataclass(frozen=True)
class Memory:
    """Free memory of this machine or of the control group we run in; bytes."""

    available_bytes: int
    swap_bytes: int


@dataclass(frozen=True)
class CompileJobs:
    """The number of compile processes, and whether memory is expected to last."""

    jobs: int
    enough: bool
    note: str


def read_memory(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Memory | None:
    """Return the free memory, the smaller of machine and control group; None where unknown."""
    rows = _meminfo(proc)
    if "MemAvailable" not in rows:
        return None
    available = rows["MemAvailable"]
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is not None and used is not None:
        available = min(available, max(limit - used, 0))
    return Memory(available, rows.get("SwapFree", 0))


def _meminfo(proc: Path) -> dict[str, int]:
    try:
        lines = (proc / "meminfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    rows = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            rows[name] = int(words[0]) * 1024
    return rows


def _number(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def oom_kills(proc: Path = Path("/proc")) -> int | None:
    """Return how many processes the kernel has killed for memory since boot; None if unknown."""
    try:
        lines = (proc / "vmstat").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.isdigit():
            return int(value)
    return None


def plan_jobs(
    memory: Memory | None, weight_bytes: int, external: bool = False, cores: int | None = None
) -> CompileJobs:
    """Return how many processes may compile at once.

    Args:
        memory: free memory; None = unknown, one process then.
        weight_bytes: size of the model's weights.
        external: whether they stay outside the OM.
        cores: CPU cores; default: those this process may use.
    """
    most = min(cores or _cores(), MAX_JOBS)
    if memory is None:
        return CompileJobs(1, True, "free memory is unknown: one compile process")
    main = MAIN_BYTES + weight_bytes * (1 if external else 2)
    free = memory.available_bytes + memory.swap_bytes // 2
    fitting = (free - main) // JOB_BYTES
    jobs = max(1, min(most, fitting))
    seen = f"{_gib(memory.available_bytes)} of memory available, {_gib(memory.swap_bytes)} of swap"
    if fitting < 1:
        missing = main + JOB_BYTES - free
        return CompileJobs(
            1,
            False,
            f"{seen}: {_gib(missing)} less than one compile process may need "
            f"({_gib(main + JOB_BYTES)}); close other programs or add swap",
        )
    return CompileJobs(jobs, True, f"{seen}: {jobs} compile process(es)")


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.1f} GiB"
