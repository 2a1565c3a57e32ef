"""A compiled model on a device: bound by its manifest, launched once a step.

    staging batch (pinned) --one H2D copy--> device staging --+
    page pools (bound once) ----------------------------------+--> execute_async --> logits, argmax
                                                              argmax --D2H--> pinned
                                  where the model has them: new_rows --D2D--> page pool

Addresses never change after open_batch and bind_caches; a step allocates nothing, and tells the
model a shape only when an extent changed. All copies of a step are on the stream of its execution,
so the next step finds them done.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .acl.constants import MemcpyKind
from .acl.error_table import RT_STREAM_SYNC_TIMEOUT
from .acl.errors import AclError, check
from .acl.host import HostAcl
from .acl.io_dataset import IoDataset
from .acl.model_io import read_model_io
from .artifact import Artifact
from .device import Device
from .manifest import HOST_TARGET, Manifest
from .om_bindings import (
    ROWS_ROLE,
    ROWS_SOURCE,
    Bindings,
    BoundInput,
    OmModelError,
    bind,
    resolve,
)
from .packed_batch import BatchLayout, PackedBatch, Section
from .row_copies import RowCopies
from .step_inputs import StepInputs
from .step_output import StepOutput

__all__ = ["OmModel", "OmModelError", "StepOutput"]


class OmModel:
    """One loaded model. Use: load, open_batch, bind_caches, then launch and wait in turn."""

    def __init__(self, device: Device, manifest: Manifest, model_id: int) -> None:
        """Take over a loaded model; see `load`."""
        self.manifest = manifest
        self.model_id = model_id
        self.bindings: Bindings = bind(manifest, read_model_io(device.acl, model_id))
        self.output = StepOutput(device, self.bindings.output("logits"), manifest.model.vocab_size)
        self._device = device
        self._step_inputs = tuple(each for each in self.bindings.inputs if not each.is_cache)
        self._caches = tuple(each for each in self.bindings.inputs if each.is_cache)
        self._pointers: list[int] = []
        self._pinned: list[NDArray[np.uint8]] = []
        self._batch: PackedBatch | None = None
        self._staging = 0  # on the device
        self._staging_host = 0
        self._argmax: NDArray[np.int32] | None = None
        self._argmax_pointer = 0
        self._argmax_host = 0
        self._rows: RowCopies | None = None
        self._rows_pointer = 0  # of the output new_rows
        self._caches_bound = not self._caches and self.bindings.gear_input is None
        self._in_flight = False
        self._inputs = StepInputs(device.acl, model_id, self.bindings, manifest.gears)
        self._outputs = IoDataset(device.acl, len(self.bindings.outputs))
        device.before_close(self.close)

    @classmethod
    def load(cls, device: Device, artifact: Artifact) -> OmModel:
        """Load an artefact's model and check every binding of its manifest against it.

        Raises AclError if ACL refuses the file, OmModelError naming both values of each mismatch,
        and before anything is loaded for a model of another kind of device.
        """
        device.enter()
        acl = device.acl
        soc = acl.get_soc_name()
        _refuse_other_device(artifact.manifest, soc, is_host=isinstance(acl, HostAcl))
        model_id, code = acl.mdl.load_from_file(str(Path(artifact.model_path).absolute()))
        hint = ""
        if code and soc is not None and soc != artifact.manifest.soc:
            hint = (
                f"The artefact is for target {artifact.manifest.target} "
                f"(soc {artifact.manifest.soc}), this device is {soc}."
            )
        check(acl, "mdl.load_from_file", code, hint)
        model: OmModel | None = None
        try:
            model = cls(device, artifact.manifest, model_id)
            return model
        finally:
            if model is None:
                acl.mdl.unload(model_id)

    def open_batch(self, layout: BatchLayout) -> PackedBatch:
        """Allocate staging memory and outputs for the largest step of `layout`; once.

        Returns the batch to fill, in pinned memory. Raises AclError when memory is short.
        """
        if self._batch is not None:
            raise OmModelError("open_batch was called before: a model has one batch")
        sections = {section.source: section for section in layout.sections}
        for each in self._step_inputs:
            _check_section(each, sections.get(each.source))
        if self.bindings.output(ROWS_ROLE) and "slot_mapping" not in sections:
            raise OmModelError("a model that returns new rows needs source 'slot_mapping' too")
        self._staging = self._malloc(layout.nbytes)
        self._device.memset(self._staging, layout.nbytes, 0)
        for each in self._step_inputs:
            section = sections[each.source]
            nbytes = section.elements * section.dtype.itemsize
            self._inputs.bind(each.index, self._staging + section.offset, nbytes)
        if self._inputs.shape_bytes:
            self._inputs.bind_shapes(self._malloc(self._inputs.shape_bytes))
        self._open_outputs(layout)
        buffer = self._malloc_host(layout.nbytes)
        buffer[:] = 0
        self._staging_host = int(buffer.ctypes.data)
        self._batch = PackedBatch(layout, buffer)
        return self._batch

    def bind_caches(self, pointers: Mapping[str, int], num_pages: int) -> None:
        """Bind the page pools, once and for all steps; set each gear once, to see that it exists.

        Args:
            pointers: device pointer of each cache source or input name (key_cache.0, ...).
            num_pages: P, the null page included.
        """
        if self._batch is None:
            raise OmModelError("bind_caches needs open_batch first")
        symbols = {
            "P": num_pages,
            "S": self.manifest.page_size,
            "M": self.manifest.table_width,
        }
        for each in self._caches:
            pointer = pointers.get(each.source) or pointers.get(each.name)
            if not pointer:
                raise OmModelError(f"no device pointer was given for cache {each.source!r}")
            shape = resolve(each.shape, symbols)
            self._inputs.bind_cache(each, pointer, shape)
            if each.source == ROWS_SOURCE:
                self._rows = self._row_copies(pointer, each, shape)
        self._inputs.prepare_gears(symbols)
        self._caches_bound = True

    def launch(self, batch: PackedBatch) -> None:
        """Start one execution of the batch's step; returns before it ends.

        Raises AclError, or OmModelError if the step's shape is none the model was compiled for.
        """
        if batch is not self._batch or not self._caches_bound or self._in_flight:
            self._refuse_launch(batch)
        device = self._device
        device.enter()
        self._inputs.adapt(batch)  # nothing runs: the last step was waited for
        rows = batch.num_logits
        try:
            device.copy_async(
                self._staging, self._staging_host, batch.nbytes, MemcpyKind.HOST_TO_DEVICE
            )
            acl = device.acl
            code = acl.mdl.execute_async(
                self.model_id, self._inputs.handle, self._outputs.handle, device.stream
            )
            if code:
                check(acl, "mdl.execute_async", code)
            if self._argmax is not None:
                device.copy_async(
                    self._argmax_host,
                    self._argmax_pointer,
                    rows * self._argmax.itemsize,
                    MemcpyKind.DEVICE_TO_HOST,
                )
            if self._rows is not None:
                self._rows.queue(batch.view("slot_mapping"))
        except BaseException:
            # What was queued may still read the staging buffer, which the next step overwrites.
            device.settle()
            raise
        self.output.num_rows = rows
        self._in_flight = True

    def wait(self, timeout_s: float | None = None) -> StepOutput:
        """Wait for the execution in progress; raises AclError if it failed or takes too long.

        timeout_s: seconds; None takes the device's own limit (Device.wait_limit_s).
        """
        if not self._in_flight:
            raise OmModelError("wait() without launch()")
        try:
            self._device.synchronize(timeout_s)
        except AclError as error:
            self._in_flight = error.code == RT_STREAM_SYNC_TIMEOUT
            if not error.device_lost:
                # That waiting failed does not say that nothing runs any more, and the next step
                # writes the staging buffer.
                self._in_flight = not self._device.settle()
            raise
        self._in_flight = False
        return self.output

    def close(self) -> None:
        """Unload and free everything, from any thread; a second call does nothing."""
        device = self._device
        if not self.model_id:
            return
        device.enter()
        if self._in_flight and not device.settle():
            return  # memory in use must not be freed: the device keeps it, see Device.close
        model_id, self.model_id = self.model_id, 0
        device.forget(self.close)
        self._inputs.close()
        self._outputs.close()
        check(device.acl, "mdl.unload", device.acl.mdl.unload(model_id))
        while self._pointers:
            device.free(self._pointers.pop())
        self.output.close()
        while self._pinned:
            device.free_host(self._pinned.pop())

    def _open_outputs(self, layout: BatchLayout) -> None:
        limits = layout.limits
        pointers: dict[str, int] = {}
        for each in self.bindings.outputs:
            nbytes = each.nbytes(limits.symbols)
            pointer = self._malloc(nbytes)
            pointers.setdefault(each.role, pointer)
            self._outputs.bind(each.index, pointer, nbytes)
        self._rows_pointer = pointers.get(ROWS_ROLE, 0)
        argmax = self.bindings.output("argmax")
        if argmax is not None:
            if argmax.dtype.numpy != np.int32:
                raise OmModelError(f"output {argmax.name!r} must be int32, is {argmax.dtype.name}")
            self._argmax = self._malloc_host(limits.max_seqs * 4).view(np.int32)
            self._argmax_pointer = pointers["argmax"]
            self._argmax_host = int(self._argmax.ctypes.data)
        self.output.attach(pointers.get("logits", 0), self._argmax)

    def _row_copies(self, pool: int, each: BoundInput, shape: tuple[int, ...]) -> RowCopies:
        slots = shape[0] * shape[1]
        row_bytes = each.bytes_of(shape) // slots
        return RowCopies(self._device, self._rows_pointer, pool, row_bytes, slots)

    def _malloc(self, nbytes: int) -> int:
        pointer = self._device.malloc(nbytes)
        self._pointers.append(pointer)
        return pointer

    def _malloc_host(self, nbytes: int) -> NDArray[np.uint8]:
        array = self._device.malloc_host(nbytes)
        self._pinned.append(array)
        return array

    def _refuse_launch(self, batch: PackedBatch) -> None:
        if self._in_flight:
            raise OmModelError("launch() before the last execution ended: call wait() first")
        if batch is not self._batch:
            raise OmModelError("launch() wants the batch that open_batch returned")
        raise OmModelError("launch() before bind_caches()")


def _check_section(each: BoundInput, section: Section | None) -> None:
    if section is None:
        raise OmModelError(f"the batch layout lacks source {each.source!r} of the manifest")
    nbytes = section.elements * section.dtype.itemsize
    if section.dtype != each.dtype.numpy:
        raise OmModelError(
            f"source {each.source!r} is {section.dtype} in the batch layout and "
            f"{each.dtype.name} in the manifest"
        )
    if nbytes < each.model_bytes:
        raise OmModelError(
            f"source {each.source!r}: the batch layout has room for {nbytes} bytes, the model's "
            f"largest shape needs {each.model_bytes}: raise the batch limits"
        )


def _refuse_other_device(manifest: Manifest, soc: str | None, is_host: bool) -> None:
    """Raise OmModelError for a device that cannot run the model; a loader's codes say less.

    The target is a family whose chips' names begin with its own. Chips of one family are left to
    the loader, which compares architectures (aclrtCheckArchCompatibility).
    """
    made_for = manifest.target + (f" ({manifest.soc})" if manifest.soc else "")
    if is_host and manifest.target != HOST_TARGET:
        raise OmModelError(
            f"{manifest.name} was compiled for {made_for}, and the host device executes models of "
            f"--target {HOST_TARGET} only: run it on that chip, or compile the model again"
        )
    if soc and not is_host and not soc.lower().startswith(manifest.target.lower()):
        raise OmModelError(
            f"{manifest.name} was compiled for {made_for}, and this device is {soc}: compile the "
            f"model again with --target {soc}"
        )
