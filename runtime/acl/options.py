"""Settings of the host device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .executor import ExecutorFactory
from .faults import FaultPlan

MIB = 1 << 20


@dataclass(frozen=True)
class AclOptions:
    """How the host device behaves; ignored when CANN's own module is used.

    executor: "openvino" or "oracle", what runs the graph; executor_factory: instead, a function
    from the opened OM to an Executor (tests). threads: cores of the executor, 0 = all.
    checked: keep a ledger and refuse wrong use with the place where the thing was made.
    faults: calls that fail. dirty_bytes: how much of an allocation is filled with 0xFF (NaN as
    float, -1 as int); a larger one gets half of it at each end, because filling touches every page;
    at most 1 MiB of it unless checked.
    memory_bytes: size of the device's memory, 0 = the machine's. num_devices: cards of the machine,
    of which ASCEND_RT_VISIBLE_DEVICES may show some; None = all that the variable names, and one
    without it.
    soc_name: what acl.get_soc_name() says. already_initialised: as if another library in the
    process had called acl.init before us. open_om: instead of om_reader.read_om (tests).
    """

    executor: str = "openvino"
    executor_factory: ExecutorFactory | None = None
    threads: int = 0
    checked: bool = False
    faults: FaultPlan = field(default_factory=FaultPlan)
    dirty_bytes: int = 64 * MIB
    memory_bytes: int = 0
    num_devices: int | None = None
    soc_name: str | None = None
    already_initialised: bool = False
    open_om: Callable[[Path], Any] | None = None

    def __post_init__(self) -> None:
        for name in ("threads", "dirty_bytes", "memory_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"AclOptions.{name} is {getattr(self, name)}, must be >= 0")
        if self.num_devices is not None and self.num_devices < 1:
            raise ValueError(f"AclOptions.num_devices is {self.num_devices}, must be >= 1")
