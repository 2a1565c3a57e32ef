"""What this machine is, who else uses it, and how much memory a process holds.

Everything comes from /proc, so that the file needs nothing but the standard library and runs in
the environment of any peer. On a system without /proc the readings are empty, not wrong.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_ISA_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "sve",
)
_MIB = 1 << 20


def machine_facts() -> dict[str, Any]:
    """Processor, memory and software of this machine, for the head of every result file."""
    fields = _cpu_fields()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return {
        "cpu": fields.get("model name", platform.processor() or platform.machine()),
        "cores": os.cpu_count(),
        "isa": [flag for flag in _ISA_FLAGS if flag in flags],
        "memory_mib": _meminfo_kib("MemTotal") // 1024,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_average": list(os.getloadavg()),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def process_tree(pid: int) -> list[int]:
    """`pid` and all its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in _proc_entries():
        fields = _stat_fields(int(entry))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(entry))
    found, queue = [], [pid]
    while queue:
        found.append(queue.pop())
        queue.extend(children.get(found[-1], []))
    return found


@dataclass(frozen=True)
class CpuTimes:
    """Clock ticks since boot: of the whole machine, of other guests, and of chosen processes."""

    total: int
    busy: int
    stolen: int
    ours: int

    @classmethod
    def take(cls, pids: Iterable[int]) -> CpuTimes:
        """Read the counters now; all zero without /proc."""
        try:
            line = (_PROC / "stat").read_text().split("\n", 1)[0]
        except OSError:
            return cls(0, 0, 0, 0)
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, line.split()[1:9])
        busy = user + nice + system + irq + softirq
        return cls(busy + idle + iowait + steal, busy, steal, sum(map(_own_ticks, pids)))

    def disturbance_since(self, before: CpuTimes) -> tuple[float, float]:
        """Shares of the machine's time that other processes and other guests took, each 0..1."""
        total = max(1, self.total - before.total)
        others = (self.busy - before.busy) - (self.ours - before.ours)
        return max(0, others) / total, (self.stolen - before.stolen) / total


@dataclass
class MemoryReading:
    """Resident memory in MiB; `anon` is allocated, `file` is mapped files the kernel may drop."""

    rss: float = 0.0
    anon: float = 0.0
    file: float = 0.0
    peak_rss: float = 0.0

    @classmethod
    def of(cls, pid: int) -> MemoryReading:
        """The memory of one process; zeros when it is gone."""
        reading = cls()
        names = {"VmRSS": "rss", "RssAnon": "anon", "RssFile": "file", "VmHWM": "peak_rss"}
        try:
            lines = (_PROC / str(pid) / "status").read_text().splitlines()
        except OSError:
            return reading
        for line in lines:
            key, _, value = line.partition(":")
            if key in names:
                setattr(reading, names[key], int(value.split()[0]) / 1024)
        return reading

    @classmethod
    def of_tree(cls, pid: int) -> MemoryReading:
        """The sum over a process and its descendants (shared file pages count once each)."""
        total = cls()
        for member in process_tree(pid):
            for name, value in asdict(cls.of(member)).items():
                setattr(total, name, getattr(total, name) + value)
        return total


class MemorySampler:
    """Samples the memory of a process tree on a thread until stopped.

    The kernel's own peak (VmHWM) counts mapped file pages as well; a compiler that maps a 2 GB
    checkpoint shows 2 GB there without owning a byte of it. So the parts are sampled apart.
    """

    def __init__(self, pid: int, interval_s: float = 0.02) -> None:
        self.pid = pid
        self.interval_s = interval_s
        self.samples = 0
        self.peaks = MemoryReading()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.interval_s):
            reading = MemoryReading.of_tree(self.pid)
            self.samples += 1
            for name, value in asdict(reading).items():
                setattr(self.peaks, name, max(getattr(self.peaks, name), value))


def drop_file_cache(paths: Iterable[Path]) -> int:
    """Ask the kernel to forget the pages of these files; returns the bytes asked for."""
    dropped = 0
    for path in paths:
        if not path.is_file():
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        dropped += path.stat().st_size
    return dropped


def folder_bytes(folder: Path) -> int:
    """Bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def mib(num_bytes: float) -> float:
    """Bytes as MiB."""
    return num_bytes / _MIB


def _cpu_fields() -> dict[str, str]:
    """The key/value lines of the first processor in /proc/cpuinfo."""
    try:
        first = (_PROC / "cpuinfo").read_text().split("\n\n", 1)[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _meminfo_kib(name: str) -> int:
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name + ":")), 0)


def _proc_entries() -> list[str]:
    try:
        return [name for name in os.listdir(_PROC) if name.isdigit()]
    except OSError:
        return []


def _stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the command name (which may itself hold spaces)."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _own_ticks(pid: int) -> int:
    """User and system ticks of a process and of the children it has waited for."""
    fields = _stat_fields(pid)
    return sum(map(int, fields[11:15])) if fields else 0
