"""Which release of CANN lies in a folder: every form in which releases state their version."""

from __future__ import annotations

import re
from pathlib import Path

HOME_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")

# (file below the root, key) of every form in which releases state their version.
_VERSION_FILES = (
    ("version.cfg", "toolkit_running_version"),
    ("version.cfg", "compiler_running_version"),
    ("version.cfg", "runtime_running_version"),
    ("*-linux/ascend_toolkit_install.info", "version"),
    ("ascend_toolkit_install.info", "version"),
    ("compiler/version.info", "version_dir"),
    ("opp/version.info", "version_dir"),
    ("version.info", "version_dir"),
    ("share/info/*/version.info", "version_dir"),
    ("compiler/version.info", "Version"),
    ("version.info", "Version"),
    ("share/info/*/version.info", "Version"),
)
_RELEASE = re.compile(r"(\d+\.\d+(?:\.[0-9A-Za-z]+)*(?:-[0-9A-Za-z.]+)?)")


def read_version(root: Path) -> str:
    """Return the release of a toolkit, such as "8.1.RC1"; "" when nothing states it."""
    for pattern, key in _VERSION_FILES:
        for file in sorted(root.glob(pattern)):
            value = _value(file, key)
            if value:
                return value
    found = _RELEASE.search(root.resolve().name)
    return found[1] if found else ""


def _value(file: Path, key: str) -> str:
    """Return a key's release: `key=8.1.RC1`, or `key=[7.7.0.1.238:8.1.RC1]` (inner:release)."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == key:
            release = value.strip().strip('[]"').rpartition(":")[2]
            found = _RELEASE.search(release)
            return found[1] if found else ""
    return ""
