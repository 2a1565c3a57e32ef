"""Does CANN's python module work? Asked in a process of its own, which may crash or hang.

`import acl` runs native code: a broken installation ends the interpreter, a broken driver lets a
call wait for ever. So a child imports it, asks every device for its memory, and prints JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .acl.error_table import REPEAT_INITIALIZE, row
from .acl.opening import import_advice
from .doctor_findings import NOTE, OK, PROBLEM, WARNING, Finding, Surroundings, size

_MARK = "PAGEDOM-DOCTOR "
_PROBE = """
import json
found = {"calls": {}, "memory": {}}
def ask(name, call, *given):
    result = call(*given)
    code = result[-1] if isinstance(result, tuple) else result
    if code:
        message = acl.get_recent_err_msg() if hasattr(acl, "get_recent_err_msg") else None
        found["calls"][name] = [code, message or ""]
    return result
try:
    import acl
    found["file"] = str(getattr(acl, "__file__", ""))
    started = ask("init", acl.init)
    count = ask("rt.get_device_count", acl.rt.get_device_count)
    found["count"] = count[0] if not count[1] else 0
    for device in range(found["count"]):
        if ask("rt.set_device(%d)" % device, acl.rt.set_device, device):
            continue
        for kind in (1, 0):
            free, total, code = acl.rt.get_mem_info(kind)
            if not code and total:
                found["memory"][device] = [free, total]
                break
        found.setdefault("soc", acl.get_soc_name())
        acl.rt.reset_device(device)
    if not started:
        acl.finalize()
except BaseException as error:
    found["error"] = "%s: %s" % (type(error).__name__, error)
print("MARK" + json.dumps(found))
"""


@dataclass(frozen=True)
class AclState:
    """What the module said. works: it could be imported and started, and has a device."""

    works: bool = False
    installed: bool = False
    soc: str | None = None
    count: int = 0
    memory: tuple[tuple[int, int], ...] = ()  # (free, total) bytes of each device
    findings: tuple[Finding, ...] = ()


def probe_acl(here: Surroundings, has_cann: bool) -> AclState:
    """Import and ask `acl` in a child process; `has_cann` makes its absence a problem."""
    ran = here.run([here.python, "-c", _PROBE.replace("MARK", _MARK)])
    data = None if ran is None else _answer(ran.text)
    if data is None:
        how = "did not end" if ran is None else f"ended with exit code {ran.code}"
        last = "" if ran is None else _last_line(ran.text)
        seen = f"`import acl` {how}{last}"
        advice = "Look at `npu-smi info` and dmesg: the driver hangs, or a library crashed."
        return AclState(installed=True, findings=(Finding("acl", PROBLEM, seen, advice),))
    error = data.get("error")
    if error and "No module named 'acl'" in error and not has_cann:
        seen = "not installed: models compiled for host run on this CPU"
        return AclState(findings=(Finding("acl", NOTE, seen),))
    if error:
        advice = import_advice(error) + "."
        found = Finding("acl", PROBLEM, str(error), advice[0].upper() + advice[1:])
        return AclState(installed=True, findings=(found,))
    findings = tuple(_findings(data))
    works = bool(data["memory"]) and all(f.status != PROBLEM for f in findings)
    memory = tuple((int(free), int(total)) for free, total in data["memory"].values())
    return AclState(works, True, data.get("soc"), int(data["count"]), memory, findings)


def _findings(data: dict[str, Any]) -> Iterator[Finding]:
    yield Finding("acl", OK, f"imported from {data['file'] or 'an unknown place'}")
    for call, (code, message) in data["calls"].items():
        if code == REPEAT_INITIALIZE:
            continue
        known = row(int(code))
        detail = f": {message.strip()}" if message.strip() else ""
        yield Finding("acl", PROBLEM, f"{call}: {code} ({known.meaning}){detail}", known.hint)
    if not data["count"] and "rt.get_device_count" not in data["calls"]:
        yield Finding("devices", PROBLEM, "ACL sees no device", row(207004).hint)
    soc = data.get("soc") or "unknown chip"
    for device, (free, total) in data["memory"].items():
        low = free < total // 10
        advice = "Other processes hold this device's memory: npu-smi info lists them."
        yield Finding(
            f"device {device}",
            WARNING if low else OK,
            f"{soc}, {size(free)} of {size(total)} free",
            advice if low else "",
        )


def _answer(text: str) -> dict[str, Any] | None:
    for line in text.splitlines():
        if line.startswith(_MARK):
            data: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return data
    return None


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return f": {lines[-1]}" if lines else ""
