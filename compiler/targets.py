"""The SoCs a model can be compiled for: one frozen record a name.

Memory, cores and buffers are what `data/platform_config/<SoC>.ini` of CANN 8.1.RC1 says; a blank
field there stays None here and the user has to say it (`--memory`).
"""

from __future__ import annotations

import re
from types import MappingProxyType

from .target_families import (
    ASCEND_310B,
    ASCEND_310P,
    ASCEND_910_93,
    ASCEND_910B,
    ASCEND_950,
    HOST,
)
from .target_records import OPT, Family, Limit, LocalBuffers, Target

_KIB = 1024
_GIB = 1024**3

_BUFFERS_A2 = LocalBuffers(512 * _KIB, 64 * _KIB, 64 * _KIB, 128 * _KIB, 192 * _KIB, OPT)
_BUFFERS_310P = LocalBuffers(1024 * _KIB, 64 * _KIB, 64 * _KIB, 256 * _KIB, 256 * _KIB, OPT)
_BUFFERS_310B = LocalBuffers(1024 * _KIB, 64 * _KIB, 64 * _KIB, 128 * _KIB, 248 * _KIB, OPT)
_BUFFERS_950 = LocalBuffers(
    512 * _KIB,
    64 * _KIB,
    64 * _KIB,
    256 * _KIB,
    248 * _KIB,
    "platform_config of CANN 9.1, Ascend950PR_9579.ini as quoted in public reports: confirm",
)

_CONFIRM = "confirm with `npu-smi info`"
_BLANK = f"{OPT} leaves it blank: {_CONFIRM}"


def _ini(name: str) -> str:
    return f"{OPT}, {name}.ini"


def _soc(
    name: str, family: Family, memory: int | None, cores: int | None, buffers: LocalBuffers
) -> Target:
    source = _ini(name)
    note = f"{source}; {_CONFIRM}" if memory is not None else _BLANK
    return Target(name, family, Limit(memory, note), Limit(cores, source), buffers)


def _a2_rows() -> tuple[Target, ...]:
    seen = "65536 MB in public `npu-smi info` listings; blank in its .ini: " + _CONFIRM
    name = "Ascend910B2C"
    b2c = Target(
        name, ASCEND_910B, Limit(64 * _GIB, seen), Limit(24, _ini("Ascend910B2C")), _BUFFERS_A2
    )
    return (
        _soc("Ascend910B1", ASCEND_910B, 64 * _GIB, 24, _BUFFERS_A2),
        _soc("Ascend910B2", ASCEND_910B, 64 * _GIB, 24, _BUFFERS_A2),
        b2c,
        _soc("Ascend910B3", ASCEND_910B, 64 * _GIB, 20, _BUFFERS_A2),
        _soc("Ascend910B4", ASCEND_910B, 32 * _GIB, 20, _BUFFERS_A2),
        _soc("Ascend910B4-1", ASCEND_910B, 32 * _GIB, 20, _BUFFERS_A2),
    )


def _a3_rows() -> tuple[Target, ...]:
    wide = ("Ascend910_9391", "Ascend910_9392", "Ascend910_9381", "Ascend910_9382")
    return (
        *(_soc(name, ASCEND_910_93, 64 * _GIB, 24, _BUFFERS_A2) for name in wide),
        _soc("Ascend910_9372", ASCEND_910_93, 64 * _GIB, 20, _BUFFERS_A2),
        _soc("Ascend910_9362", ASCEND_910_93, 32 * _GIB, 20, _BUFFERS_A2),
    )


def _edge_rows() -> tuple[Target, ...]:
    memory = 24_000_000_000  # as the .ini writes it, not 24 GiB
    narrow = ("Ascend310P3", "Ascend310P5", "Ascend310P7")
    blank = ("Ascend310B2", "Ascend310B3", "Ascend310B4")
    return (
        _soc("Ascend310P1", ASCEND_310P, memory, 10, _BUFFERS_310P),
        *(_soc(name, ASCEND_310P, memory, 8, _BUFFERS_310P) for name in narrow),
        _soc("Ascend310B1", ASCEND_310B, 32 * _GIB, 1, _BUFFERS_310B),
        *(_soc(name, ASCEND_310B, None, 1, _BUFFERS_310B) for name in blank),
    )


_HOST = Target(
    "host",
    HOST,
    Limit(None, "this machine's RAM, read when a plan is made"),
    Limit(None, "this machine's CPU cores"),
    None,
)

TARGETS = MappingProxyType(
    {row.name: row for row in (*_a2_rows(), *_a3_rows(), *_edge_rows(), _HOST)}
)

# 950 names carry a four-figure NPU name that differs per card (`npu-smi info -t board`).
_NAME_950 = re.compile(r"ascend950(pr|dt)_([0-9a-z]{4})", re.IGNORECASE)
PATTERN_950 = ("Ascend950PR_xxxx", "Ascend950DT_xxxx")


def match_950(name: str) -> Target | None:
    """Return a record for a 950 card by its full name, None for any other name."""
    found = _NAME_950.fullmatch(name)
    if found is None:
        return None
    full = f"Ascend950{found[1].upper()}_{found[2]}"
    cores = Limit(28, _BUFFERS_950.source) if full == "Ascend950PR_9579" else _UNKNOWN_950
    return Target(full, ASCEND_950, _UNKNOWN_950, cores, _BUFFERS_950)


_UNKNOWN_950 = Limit(None, f"no 950 record in {OPT}: {_CONFIRM}")


def target_names() -> tuple[str, ...]:
    """Return every name that `--target` accepts, the 950 pattern included."""
    return (*TARGETS, *PATTERN_950)
