"""Running models on the host device: check the datasets, make the views, queue the run.

Views are kept in the dataset (see host_dataset.py): only indices whose buffer or shape changed
since the last run are checked and made again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .constants import ALIGN_BYTES, SIZE_TOLERANCE_BYTES, ExecAttr
from .error_table import (
    GE_EXECUTE_TIMEOUT,
    GE_GEAR,
    GE_INPUT_ADDR,
    GE_INPUT_LENGTH,
    GE_PARAM_INVALID,
    INVALID_PARAM,
    NOT_DYNAMIC,
    RT_PARAM_INVALID,
)
from .executor import Array, ExecutorError
from .host_core import HostCore
from .host_dataset import Dataset, Datasets, Shape
from .host_interface import Io
from .host_memory import DEVICE, Block, Memory
from .host_model import LoadedModel, Models
from .host_stream import Stream, Streams
from .host_worker import Failure

EXEC_CONFIG = "exec config"
_BYTES = np.dtype(np.uint8)


class Executions:
    """pyACL's execute calls and the choice of a gear."""

    def __init__(
        self,
        core: HostCore,
        streams: Streams,
        memory: Memory,
        datasets: Datasets,
        models: Models,
    ) -> None:
        self._core = core
        self._streams = streams
        self._memory = memory
        self._datasets = datasets
        self._models = models
        self._configs: dict[int, dict[int, int]] = {}

    def execute_async(self, model_id: int, inputs: int, outputs: int, stream: int, /) -> int:
        """Queue a run; failures of the run itself are reported by the next synchronisation."""
        on = self._streams.find("mdl.execute_async", stream)
        return on if isinstance(on, int) else self._launch(model_id, inputs, outputs, on)

    def execute(self, model_id: int, inputs: int, outputs: int, /) -> int:
        """Run on the default stream and wait."""
        return self._run_and_wait(model_id, inputs, outputs, 0, -1)

    def execute_v2(
        self, model_id: int, inputs: int, outputs: int, stream: int, config: int, /
    ) -> int:
        """Run on a stream and wait as long as the configuration allows."""
        options = self._configs.get(config)
        if options is None:
            return self._core.bad_handle(EXEC_CONFIG, config)
        timeout_ms = options.get(ExecAttr.STREAM_SYNC_TIMEOUT, -1)
        return self._run_and_wait(model_id, inputs, outputs, stream, timeout_ms)

    def create_exec_config_handle(self) -> int:
        """Return a handle for execute_v2."""
        handle = self._core.new_handle()
        self._configs[handle] = {}
        self._core.ledger.opened(EXEC_CONFIG, handle)
        return handle

    def set_exec_config_opt(self, config: int, attr: int, value: int, /) -> int:
        """Set an option."""
        found = self._configs.get(config)
        if found is None:
            return self._core.bad_handle(EXEC_CONFIG, config)
        if attr not in (ExecAttr.STREAM_SYNC_TIMEOUT, ExecAttr.EVENT_SYNC_TIMEOUT):
            return self._core.fail(INVALID_PARAM, f"EH0001: exec config attribute {attr}")
        found[int(attr)] = value
        return 0

    def destroy_exec_config_handle(self, config: int, /) -> int:
        """Destroy the handle."""
        if self._configs.pop(config, None) is None:
            return self._core.bad_handle(EXEC_CONFIG, config)
        self._core.ledger.closed(EXEC_CONFIG, config)
        return 0

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

    def clear(self) -> None:
        """Forget everything (finalize)."""
        self._configs.clear()

    # -- gears

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
        # As on the chip: a synchronous copy into the shape buffer, ordered with no stream.
        interface = model.interface
        buffer = dataset.buffers[interface.gear_input]
        shape_io = interface.inputs[interface.gear_input]
        numbers = np.array(interface.gear_dims(interface.gears[gear]), shape_io.dtype.numpy)
        block = self._memory.find(buffer.ptr)
        if block is None or buffer.ptr + buffer.nbytes > block.ptr + block.nbytes:
            return self._core.misuse(
                GE_INPUT_ADDR,
                f"{call}: the shape buffer must be device memory, is "
                + self._memory.what_is(buffer.ptr),
            )
        room = buffer.nbytes // numbers.itemsize
        block.view(buffer.ptr, numbers.dtype, (min(room, numbers.size),))[:] = numbers[:room]
        dataset.gear = model.gear = gear
        dataset.stale.update(range(len(dataset.buffers)))
        return 0

    # -- runs

    def _run_and_wait(
        self, model_id: int, inputs: int, outputs: int, stream: int, timeout_ms: int
    ) -> int:
        on = self._streams.find("mdl.execute", stream)
        if isinstance(on, int):
            return on
        code = self._launch(model_id, inputs, outputs, on)
        if code:
            return code
        if not on.worker.wait(-1 if timeout_ms < 0 else timeout_ms / 1000):
            return self._core.fail(
                GE_EXECUTE_TIMEOUT, f"mdl.execute: not complete after {timeout_ms} ms"
            )
        failure = on.worker.take_failure()
        return 0 if failure is None else self._core.fail(*failure)

    def _launch(self, model_id: int, inputs: int, outputs: int, on: Stream) -> int:
        core = self._core
        model = self._models.find("mdl.execute", model_id)
        if isinstance(model, int):
            return model
        ins, outs = self._datasets.find(inputs), self._datasets.find(outputs)
        if isinstance(ins, int):
            return ins
        if isinstance(outs, int):
            return outs
        code = core.faults.next("launch")
        if code:
            return core.fail(code, "EE9999: mdl.execute: failure on order")
        code = self._resolve(model, ins, is_input=True) or self._resolve(
            model, outs, is_input=False
        )
        if code:
            return code
        if core.checked:
            code = self._check_order(model, on)
            if code:
                return code
        views = ins.views
        arguments = [views[index] for index in model.order]
        results = list(outs.views)

        def run() -> Failure | None:
            fault = core.faults.next("execute")
            if fault:
                return fault, f"EZ9999: model {model_id}: failure on order"
            try:
                with model.lock:
                    shapes = model.executor.execute(arguments, results)
            except ExecutorError as error:
                return error.code, f"EZ9999: model {model_id}: {error.text}"
            outs.shapes = dict(enumerate(shapes))
            return None

        number = on.worker.enqueue(run)
        if core.checked:
            use = (on.worker, number)
            model.last_use = ins.last_use = outs.last_use = use
            for block in (*ins.blocks, *outs.blocks):
                if block is not None:
                    block.last_use = use
        else:
            model.last_use = (on.worker, number)
        return 0

    def _check_order(self, model: LoadedModel, on: Stream) -> int:
        use = model.last_use
        if use is None or on.worker.is_ordered_after(*use):
            return 0
        return self._core.misuse(
            RT_PARAM_INVALID,
            f"mdl.execute: model {model.model_id} is still in use on {use[0].name}; one model runs "
            f"on one stream at a time: synchronise that stream, or let {on.worker.name} wait for "
            "an event recorded there",
        )

    # -- datasets

    def _resolve(self, model: LoadedModel, dataset: Dataset, is_input: bool) -> int:
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
        if dataset.stale:
            for index in sorted(dataset.stale):
                code = self._resolve_one(model, dataset, ios[index], index, is_input)
                if code:
                    return code
            dataset.stale.clear()
        return 0

    def _resolve_one(
        self, model: LoadedModel, dataset: Dataset, io: Io, index: int, is_input: bool
    ) -> int:
        shape = self._input_shape(model, dataset, index) if is_input else None
        if isinstance(shape, int):
            return shape
        buffer = dataset.buffers[index]
        needed = io.nbytes(shape) if shape is not None else model.interface.output_bytes(index)
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
            gear = interface.largest_gear if dataset.gear is None else dataset.gear
            return interface.gears[gear].inputs[index]
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
