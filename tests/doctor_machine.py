"""A made-up machine for the doctor: a root folder with version files, nodes, programs and `acl`."""

from __future__ import annotations

import sys
from pathlib import Path

from pagedom.runtime.doctor import Surroundings

CARD = """\
+--------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                           |
+---------------------------+---------------+------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| 0     910B3               | {health:<14}| 93.6        44                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3162 / 65536         |
"""

# What a working module answers; `lines` of a test change it.
ACL = """
class rt:
    def get_device_count(): return 1, 0
    def set_device(i): return 0
    def reset_device(i): return 0
    def get_mem_info(kind): return (48 << 30, 64 << 30, 0) if kind == 1 else (0, 0, 207000)
def init(*a): return 0
def finalize(): return 0
def get_soc_name(): return "Ascend910B3"
def get_recent_err_msg(): return "EL0004: told so"
"""


class MadeUpMachine:
    """Starts as a machine without anything of Ascend."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.bin.mkdir(parents=True)
        self.environ = {"PATH": str(self.bin)}
        self.write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")

    def write(self, name: str, text: str) -> Path:
        """Write a file below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def cann(self, release: str = "8.1.RC1", name: str = "cann") -> Path:
        """Install a CANN and source it."""
        folder = self.write(
            f"{name}/version.cfg", f"toolkit_running_version=[7.7.0.1:{release}]\n"
        ).parent
        self.environ["ASCEND_HOME_PATH"] = str(folder)
        return folder

    def driver(self, version: str = "24.1.rc2", nodes: int = 1) -> None:
        """Install a driver and device nodes."""
        self.write("usr/local/Ascend/driver/version.info", f"Version={version}\nVersion2=x\n")
        for number in range(nodes):
            self.write(f"dev/davinci{number}", "")

    def npu_smi(self, health: str = "OK", code: int = 0) -> None:
        """Put an npu-smi on PATH."""
        text = CARD.format(health=health)
        script = self.write("bin/npu-smi", f"#!/bin/sh\n/bin/cat <<'END'\n{text}END\nexit {code}\n")
        script.chmod(0o755)

    def acl(self, lines: str = "") -> None:
        """Install the module `acl`; `lines` run at the end of it."""
        folder = self.write("python/acl.py", ACL + lines).parent
        self.environ["PYTHONPATH"] = str(folder)

    def whole(self) -> MadeUpMachine:
        """Everything is there and works."""
        self.cann()
        self.driver()
        self.npu_smi()
        self.acl()
        return self

    def here(self, **changes: object) -> Surroundings:
        """Return what the doctor takes."""
        return Surroundings(self.environ, self.root, sys.executable, **changes)
