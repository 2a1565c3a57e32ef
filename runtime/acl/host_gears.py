"""Choosing a gear on the host device.

As on the chip (GeExecutor::SetDynamicDims) it is state of the model, which get_cur_output_dims
tells, and a synchronous copy into the shape input's buffer, ordered with no stream. What a run
takes is what that buffer holds then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .error_table import GE_GEAR, GE_INPUT_ADDR, GE_INPUT_LENGTH, INVALID_PARAM, NOT_DYNAMIC
from .host_core import HostCore
from .host_dataset import Dataset, Datasets
from .host_memory import Memory
from .host_model import LoadedModel, Models


class GearCalls:
    """pyACL's calls that choose a shape of a gear model."""

    def __init__(self, core: HostCore, memory: Memory, datasets: Datasets, models: Models) -> None:
        self._core = core
        self._memory = memory
        self._datasets = datasets
        self._models = models

    def set_input_dynamic_dims(
        self, model_id: int, dataset: int, index: int, dims: dict[str, Any], /
    ) -> int:
        """Choose the gear of a dataset: `dims` lists every extent of every input."""
        call = "mdl.set_input_dynamic_dims"
        model, found = self._models.find(call, model_id), self._datasets.find(dataset)
        if isinstance(model, int):
            return model
        if isinstance(found, int):
            return found
        interface = model.interface
        if interface.mode != "gear":
            return self._core.fail(NOT_DYNAMIC, f"{call}: the OM has no gears")
        if index != interface.gear_input or not 0 <= index < len(found.buffers):
            return self._core.fail(
                GE_INPUT_ADDR,
                f"{call}: index {index} is not the one of the shape input, "
                f"{interface.gear_input}, or the dataset has no buffer there",
            )
        gear = self._match_gear(call, model, list(dims.get("dims", ()))[: dims.get("dimCount", 0)])
        if gear < 0:
            return -gear
        if self._core.checked and model.is_pending():
            return self._core.misuse(
                INVALID_PARAM,
                f"{call}: the gear changes while a run of the model is not known to be complete; "
                "synchronise the stream first",
            )
        return self._set_gear(call, model, found, gear)

    def set_dynamic_batch_size(self, model_id: int, dataset: int, index: int, batch: int, /) -> int:
        """Fail: dynamic_batch models do not exist here."""
        model = self._models.find("mdl.set_dynamic_batch_size", model_id)
        if isinstance(model, int):
            return model
        return self._core.fail(NOT_DYNAMIC, "mdl.set_dynamic_batch_size: no dynamic batch")

    def _match_gear(self, call: str, model: LoadedModel, dims: list[int]) -> int:
        """Return the gear's index, or minus the code."""
        interface = model.interface
        compiled = interface.compiled_dims
        if len(dims) != len(compiled):
            return -self._core.fail(
                GE_INPUT_LENGTH, f"E10052: {call}: {len(dims)} extents, the OM has {len(compiled)}"
            )
        for place, (given, fixed) in enumerate(zip(dims, compiled)):
            if fixed >= 0 and given != fixed:
                return -self._core.fail(
                    GE_INPUT_LENGTH, f"{call}: extent {place} is {given}, the OM has fixed {fixed}"
                )
        for number, gear in enumerate(interface.gears):
            if interface.gear_dims(gear) == dims:
                return number
        known = ", ".join(str(interface.gear_dims(gear)) for gear in interface.gears)
        return -self._core.fail(GE_GEAR, f"{call}: {dims} is no gear; compiled are {known}")

    def _set_gear(self, call: str, model: LoadedModel, dataset: Dataset, gear: int) -> int:
        interface = model.interface
        model.gear = gear
        buffer = dataset.buffers[interface.gear_input]
        content = interface.shape_content(gear, buffer.nbytes)
        if not content:
            return self._core.fail(
                GE_INPUT_LENGTH,
                f"{call}: the shape buffer has {buffer.nbytes} bytes, the gear's "
                f"{len(interface.gears[gear].extents)} numbers need 4 each",
            )
        block = self._memory.find(buffer.ptr)
        if block is None or buffer.ptr + buffer.nbytes > block.ptr + block.nbytes:
            return self._core.misuse(
                GE_INPUT_ADDR,
                f"{call}: the shape buffer must be device memory, is "
                + self._memory.what_is(buffer.ptr),
            )
        block.view(buffer.ptr, np.dtype(np.uint8), (len(content),))[:] = np.frombuffer(
            content, np.uint8
        )
        return 0
