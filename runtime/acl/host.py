"""The host device: pyACL's module `acl` on a machine without an Ascend chip.

Same functions, tuples, argument orders, error codes, lifetime and context rules; memory that is
dirty when allocated; streams that are really asynchronous. docs/design/acl.md has the list of what
is imitated and what is not.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np

from .error_table import (
    REPEAT_FINALIZE,
    REPEAT_INITIALIZE,
    RT_PARAM_INVALID,
    UNINITIALIZE,
)
from .host_context import Contexts
from .host_copy import Copies
from .host_core import HostCore
from .host_dataset import Datasets, data_type_size
from .host_event import Events
from .host_execution import Executions
from .host_gears import GearCalls
from .host_memory import Memory
from .host_model import Models
from .host_model_desc import ModelDescs
from .host_namespaces import HostMdl, HostRt
from .host_resolve import Resolver
from .host_stream import Streams
from .host_util import HostUtil
from .ledger import Ledger
from .options import AclOptions

LOG = logging.getLogger(__name__)

_VERSION = (1, 0, 0)  # of the ACL interface, not of CANN


class HostAcl:
    """One emulated process with its devices. `ledger` is the only name that pyACL does not have."""

    def __init__(self, options: AclOptions | None = None) -> None:
        core = HostCore(options or AclOptions())
        contexts = Contexts(core)
        streams = Streams(core, contexts)
        memory = Memory(core, contexts)
        datasets = Datasets(core)
        models = Models(core, contexts, memory)
        descs = ModelDescs(core, models)
        resolver = Resolver(core, memory)
        executions = Executions(core, streams, resolver, datasets, models)
        gears = GearCalls(core, memory, datasets, models)
        self._core = core
        # In the order in which finalize must let go of them.
        self._ends = (
            streams.stop_all,
            models.unload_all,
            datasets.clear,
            descs.clear,
            executions.clear,
            memory.free_all,
            contexts.destroy_all,
        )
        copies = Copies(core, contexts, memory, streams)
        self.rt = HostRt(contexts, streams, Events(core, contexts, streams), memory, copies)
        self.mdl = HostMdl(models, descs, datasets, executions, gears)
        self.util = HostUtil()
        self.create_data_buffer = datasets.create_data_buffer
        self.destroy_data_buffer = datasets.destroy_data_buffer
        self.update_data_buffer = datasets.update_data_buffer
        self.get_data_buffer_addr = datasets.get_data_buffer_addr
        self.get_data_buffer_size = datasets.get_data_buffer_size
        self.get_data_buffer_size_v2 = datasets.get_data_buffer_size_v2
        self.create_tensor_desc = datasets.create_tensor_desc
        self.destroy_tensor_desc = datasets.destroy_tensor_desc
        self.get_tensor_desc_type = datasets.get_tensor_desc_type
        self.get_tensor_desc_format = datasets.get_tensor_desc_format
        self.get_tensor_desc_size = datasets.get_tensor_desc_size
        self.get_tensor_desc_element_count = datasets.get_tensor_desc_element_count
        self.get_tensor_desc_num_dims = datasets.get_tensor_desc_num_dims
        self.get_tensor_desc_dim_v2 = datasets.get_tensor_desc_dim_v2
        self.data_type_size = data_type_size

    @property
    def ledger(self) -> Ledger:
        """What was made and destroyed; in checked mode with the places."""
        return self._core.ledger

    @property
    def calls_without_context(self) -> list[str]:
        """Every call that got 107002, with its thread."""
        return self._core.calls_without_context

    def init(self, config_path: str = "", /) -> int:
        """Start ACL; 100002 if it runs already."""
        core = self._core
        if core.initialised:
            return core.fail(REPEAT_INITIALIZE, "EH0002: acl.init: initialised before")
        if config_path:
            try:
                json.loads(Path(config_path).read_text(encoding="utf-8") or "{}")
            except (OSError, ValueError) as error:
                return core.fail(RT_PARAM_INVALID, f"EH0003: acl.init: {config_path}: {error}")
        core.read_environment()
        core.initialised, core.finalised = True, False
        return 0

    def finalize(self) -> int:
        """End ACL: everything left is gone. In checked mode what is left is logged with its place.

        Repeated: 100037.
        """
        core = self._core
        if core.finalised:
            return core.fail(REPEAT_FINALIZE, "acl.finalize: finalised before")
        if not core.initialised:
            return core.fail(UNINITIALIZE, "acl.finalize: acl.init was not called")
        if core.checked:
            report = core.ledger.report()
            if report:
                LOG.warning("acl.finalize: not destroyed before:\n%s", report)
        for end in self._ends:
            end()
        core.initialised, core.finalised = False, True
        return 0

    def get_version(self) -> tuple[int, int, int, int]:
        """Return (major, minor, patch, ret) of the interface."""
        return (*_VERSION, 0)

    def get_soc_name(self) -> str | None:
        """Return the name of the chip, None on a machine without one."""
        return self._core.options.soc_name

    def get_recent_err_msg(self) -> str | None:
        """Return and clear the calling thread's messages."""
        return self._core.take_message()

    def float16_to_float(self, bits: int, /) -> float:
        """Convert the bits of a float16."""
        return float(np.array(bits, np.uint16).view(np.float16))

    def float_to_float16(self, value: float, /) -> int:
        """Return the bits of a float16."""
        return int(np.array(value, np.float16).view(np.uint16))
