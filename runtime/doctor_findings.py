"""What the doctor finds, and the surroundings it looks at."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """One line of the page: what was looked at, how it stands, what was seen, what to do.

    status: ok; note (absent, and that is fine); warning (works, or may not matter); problem (blocks
    what was asked for).
    """

    topic: str
    status: str
    seen: str
    advice: str = ""


@dataclass(frozen=True)
class Ran:
    """A command that ran to its end: exit code, and stdout and stderr together."""

    code: int
    text: str


@dataclass(frozen=True)
class Surroundings:
    """The machine as the doctor sees it; tests give folders and programs of their own."""

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")
    python: str = sys.executable
    timeout_s: float = 20.0

    def path(self, absolute: str) -> Path:
        """Return a file of the machine, such as "/proc/meminfo"."""
        return self.root / absolute.lstrip("/")

    def read(self, absolute: str) -> str:
        """Return a small text file, or "" when it cannot be read."""
        try:
            return self.path(absolute).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def paths(self, variable: str) -> list[str]:
        """Return the entries of a variable that is a list of paths."""
        return [part for part in self.environ.get(variable, "").split(os.pathsep) if part]

    def which(self, program: str) -> str | None:
        """Return the path of a program on PATH, or None."""
        return shutil.which(program, path=self.environ.get("PATH", ""))

    def run(self, argv: Sequence[str]) -> Ran | None:
        """Run a program; None when it cannot be started or does not end in time."""
        try:
            done = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout_s,
                check=False,
                env=dict(self.environ),
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return Ran(done.returncode, done.stdout + done.stderr)


def size(nbytes: int) -> str:
    """Return a size for people."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes / 2**10:.1f} KiB"
