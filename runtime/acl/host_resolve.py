"""From a dataset to the numpy views that an executor gets.

Views are kept in the dataset (see host_dataset.py): only indices whose buffer or shape changed
since the last run are checked and made again.
"""

from __future__ import annotations

import numpy as np

from .constants import ALIGN_BYTES, SIZE_TOLERANCE_BYTES
from .error_table import GE_GEAR, GE_PARAM_INVALID, INVALID_PARAM, RT_PARAM_INVALID
from .executor import Array
from .host_core import HostCore
from .host_dataset import Dataset, Shape
from .host_interface import Io
from .host_memory import DEVICE, Block, Memory
from .host_model import LoadedModel

_BYTES = np.dtype(np.uint8)


class Resolver:
    """Checks datasets against a model and makes their views."""

    def __init__(self, core: HostCore, memory: Memory) -> None:
        self._core = core
        self._memory = memory

    def resolve(self, model: LoadedModel, dataset: Dataset, is_input: bool) -> int:
        """Check and make the views of stale indices; return the code."""
        ios = model.interface.inputs if is_input else model.interface.outputs
        if dataset.resolved_for != model.model_id:
            count = len(dataset.buffers)
            if count != len(ios):
                side = "inputs" if is_input else "outputs"
                names = ", ".join(f"{io.name} ({io.nbytes(io.dims)} bytes)" for io in ios)
                return self._core.misuse(
                    GE_PARAM_INVALID,
                    f"E13025: the number of {side} is inconsistent: the dataset has {count}, the "
                    f"model has {len(ios)}: {names}",
                )
            dataset.resolved_for = model.model_id
            dataset.views = [np.empty(0, np.uint8)] * count
            dataset.blocks = [None] * count
            dataset.acl_dtypes = [io.dtype.acl for io in ios]
            dataset.stale = set(range(count))
        if is_input and model.interface.mode == "gear":
            code = self._take_gear(model, dataset)
            if code:
                return code
        if dataset.stale:
            for index in sorted(dataset.stale):
                code = self._resolve_one(model, dataset, ios[index], index, is_input)
                if code:
                    return code
            dataset.stale.clear()
        return 0

    def gear_of(self, model: LoadedModel, dataset: Dataset) -> int | None:
        """Return the gear that the dataset's shape buffer holds at this moment, None = none."""
        buffer = dataset.buffers[model.interface.gear_input]
        block = self._memory.find(buffer.ptr)
        if block is None or buffer.ptr + buffer.nbytes > block.ptr + block.nbytes:
            return None
        return model.interface.gear_in(block.view(buffer.ptr, _BYTES, (buffer.nbytes,)).tobytes())

    def views_of_gear(self, model: LoadedModel, dataset: Dataset, gear: int) -> list[Array]:
        """Return the dataset's inputs in the shapes of another gear than it was resolved for."""
        views = list(dataset.views)
        for index, shape in enumerate(model.interface.gears[gear].inputs):
            block, io = dataset.blocks[index], model.interface.inputs[index]
            if block is not None:
                buffer = dataset.buffers[index]
                views[index] = self._view(block, buffer.ptr, buffer.nbytes, io, shape)
        return views

    def _take_gear(self, model: LoadedModel, dataset: Dataset) -> int:
        """Look which gear the run takes; with none in the shape buffer the largest."""
        gear = self.gear_of(model, dataset)
        if gear is None and self._core.checked:
            return self._core.misuse(
                GE_GEAR,
                "mdl.execute: the shape buffer holds no gear: call mdl.set_input_dynamic_dims "
                "first (the chip would run the largest gear, whatever the step is)",
            )
        gear = model.interface.largest_gear if gear is None else gear
        if gear != dataset.gear:
            dataset.gear = gear
            dataset.stale = set(range(len(dataset.buffers)))
        return 0

    def _resolve_one(
        self, model: LoadedModel, dataset: Dataset, io: Io, index: int, is_input: bool
    ) -> int:
        shape = self._input_shape(model, dataset, index) if is_input else None
        if isinstance(shape, int):
            return shape
        buffer = dataset.buffers[index]
        if shape is None:
            needed = model.interface.output_bytes(index)
        elif model.interface.mode == "gear":
            needed = model.interface.input_bytes(index)  # as compiled: of the largest gear
        else:
            needed = io.nbytes(shape)
        tolerance = SIZE_TOLERANCE_BYTES
        if self._core.checked or model.interface.mode == "range":
            tolerance = 0
        name = f"{'input' if is_input else 'output'} {index} ({io.name})"
        if buffer.nbytes + tolerance < needed:
            code = INVALID_PARAM if model.interface.mode == "range" else GE_PARAM_INVALID
            return self._core.misuse(
                code,
                f"E13025: {name}: the buffer has {buffer.nbytes} bytes, the model needs {needed}"
                + ("" if shape is None else f" for shape {list(shape)}"),
            )
        block = self._memory.find(buffer.ptr)
        code = self._check_block(name, block, buffer.ptr, buffer.nbytes)
        if code or block is None:
            return code
        dataset.blocks[index] = block
        dataset.views[index] = self._view(block, buffer.ptr, buffer.nbytes, io, shape)
        return 0

    def _view(self, block: Block, ptr: int, nbytes: int, io: Io, shape: Shape | None) -> Array:
        if shape is None:
            return block.view(ptr, _BYTES, (nbytes,))
        return block.view(ptr, io.dtype.numpy, shape)

    def _check_block(self, name: str, block: Block | None, ptr: int, nbytes: int) -> int:
        if block is None or block.kind != DEVICE:
            return self._core.misuse(
                RT_PARAM_INVALID,
                f"mdl.execute: {name} must be device memory, is " + self._memory.what_is(ptr),
            )
        if ptr + nbytes > block.ptr + block.nbytes:
            return self._core.misuse(
                RT_PARAM_INVALID,
                f"mdl.execute: {name}: {nbytes} bytes from {ptr:#x} leave "
                + self._memory.what_is(ptr),
            )
        if self._core.checked and ptr % ALIGN_BYTES:
            return self._core.misuse(
                RT_PARAM_INVALID,
                f"mdl.execute: {name}: address {ptr:#x} is not a multiple of {ALIGN_BYTES}",
            )
        return 0

    def _input_shape(self, model: LoadedModel, dataset: Dataset, index: int) -> Shape | int:
        interface = model.interface
        io = interface.inputs[index]
        if interface.mode == "gear":
            return interface.gears[dataset.gear].inputs[index]
        if interface.mode == "static":
            return io.dims
        shape = dataset.shapes.get(index, io.dims)
        if not io.accepts(shape):
            return self._core.fail(
                INVALID_PARAM,
                f"E19999: input {index} ({io.name}) has shape {list(shape)}, the model wants "
                f"{list(io.dims)}; set it with mdl.set_dataset_tensor_desc",
            )
        return shape
