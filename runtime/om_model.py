"""A compiled model on a device: bound by its manifest, launched once a step.

    staging batch (pinned) --one H2D copy--> device staging --+
    page pools (bound once) ----------------------------------+--> execute_async --> logits, argmax
                                                              argmax --D2H--> pinned

Addresses never change after open_batch and bind_caches; a step allocates nothing, and tells the
model a shape only when an extent changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .acl.constants import MAX_DIMS, MemcpyKind
from .acl.error_table import RT_STREAM_SYNC_TIMEOUT
from .acl.errors import AclError, check
from .acl.io_dataset import IoDataset
from .acl.model_io import read_model_io
from .artifact import Artifact
from .device import Device
from .manifest import Manifest
from .om_bindings import Bindings, BoundInput, OmModelError, bind, resolve
from .packed_batch import BatchLayout, PackedBatch, Section
from .step_output import StepOutput

__all__ = ["OmModel", "OmModelError", "StepOutput"]

_GEAR_BYTES = MAX_DIMS * 8  # for a model that does not tell the size of its shape input


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
        self._shapes: dict[int, tuple[int, ...]] = {}  # input index -> shape told last
        self._extents = (-1, -1, -1)  # T, B, R of the shapes told last
        self._batch: PackedBatch | None = None
        self._staging = 0  # on the device
        self._staging_host = 0
        self._argmax: NDArray[np.int32] | None = None
        self._argmax_pointer = 0
        self._argmax_host = 0
        self._caches_bound = not self._caches
        self._in_flight = False
        num_inputs = len(self.bindings.inputs) + (self.bindings.gear_input is not None)
        self._inputs = IoDataset(device.acl, num_inputs)
        self._outputs = IoDataset(device.acl, len(self.bindings.outputs))
        device.before_close(self.close)

    @classmethod
    def load(cls, device: Device, artifact: Artifact) -> OmModel:
        """Load an artefact's model and check every binding of its manifest against it.

        Raises AclError if ACL refuses the file, OmModelError naming both values of each mismatch.
        """
        device.enter()
        acl = device.acl
        model_id, code = acl.mdl.load_from_file(str(Path(artifact.model_path).absolute()))
        soc = acl.get_soc_name()
        hint = ""
        if soc is not None and code:
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
        self._staging = self._malloc(layout.nbytes)
        self._device.memset(self._staging, layout.nbytes, 0)
        for each in self._step_inputs:
            section = sections[each.source]
            nbytes = section.elements * section.dtype.itemsize
            self._inputs.bind(each.index, self._staging + section.offset, nbytes)
        gear_input = self.bindings.gear_input
        if gear_input is not None:
            nbytes = gear_input.nbytes or _GEAR_BYTES
            self._inputs.bind(gear_input.index, self._malloc(nbytes), nbytes)
        self._open_outputs(layout)
        buffer = self._malloc_host(layout.nbytes)
        buffer[:] = 0
        self._staging_host = int(buffer.ctypes.data)
        self._batch = PackedBatch(layout, buffer)
        return self._batch

    def bind_caches(self, pointers: Mapping[str, int], num_pages: int) -> None:
        """Bind the page pools, once and for all steps.

        Args:
            pointers: device pointer of each cache source or input name (key_cache.0, ...).
            num_pages: P, the null page included.
        """
        if self._batch is None:
            raise OmModelError("bind_caches needs open_batch first")
        symbols = {"P": num_pages, "S": self.manifest.page_size}
        for each in self._caches:
            pointer = pointers.get(each.source) or pointers.get(each.name)
            if not pointer:
                raise OmModelError(f"no device pointer was given for cache {each.source!r}")
            shape = resolve(each.shape, symbols)
            each.check(shape)
            nbytes = int(np.prod(shape, dtype=np.int64)) * each.dtype.itemsize
            self._inputs.bind(each.index, pointer, nbytes)
            self._tell_shape(each, shape)
        self._caches_bound = True
        self._extents = (-1, -1, -1)  # a gear names the caches' extents too

    def launch(self, batch: PackedBatch) -> None:
        """Start one execution of the batch's step; returns before it ends.

        Raises AclError, or OmModelError if the step's shape is none the model was compiled for.
        """
        if batch is not self._batch or not self._caches_bound or self._in_flight:
            self._refuse_launch(batch)
        extents = (batch.num_tokens, batch.num_seqs, batch.num_logits)
        device = self._device
        device.enter()
        if extents != self._extents:
            self._extents = (-1, -1, -1)
            self._reshape(batch)
            self._extents = extents
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
        except BaseException:
            # What was queued may still read the staging buffer, which the next step overwrites.
            device.acl.rt.synchronize_stream(device.stream)
            raise
        self.output.num_rows = rows
        self._in_flight = True

    def wait(self, timeout_s: float | None = None) -> StepOutput:
        """Wait for the execution in progress; raises AclError if it failed or takes too long."""
        if not self._in_flight:
            raise OmModelError("wait() without launch()")
        try:
            self._device.synchronize(timeout_s)
        except AclError as error:
            self._in_flight = error.code == RT_STREAM_SYNC_TIMEOUT
            raise
        self._in_flight = False
        return self.output

    def close(self) -> None:
        """Unload and free everything, from any thread; a second call does nothing."""
        device = self._device
        if not self.model_id:
            return
        device.enter()
        if self._in_flight:
            # Memory in use must not be freed; a failure is nobody's any more.
            device.acl.rt.synchronize_stream(device.stream)
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
        symbols = {
            "T": limits.max_tokens,
            "B": limits.max_seqs,
            "R": limits.max_seqs,
            "M": limits.table_width,
            "S": limits.page_size,
        }
        pointers: dict[str, int] = {}
        for each in self.bindings.outputs:
            nbytes = each.nbytes(symbols)
            pointer = self._malloc(nbytes)
            pointers.setdefault(each.role, pointer)
            self._outputs.bind(each.index, pointer, nbytes)
        argmax = self.bindings.output("argmax")
        if argmax is not None:
            if argmax.dtype.numpy != np.int32:
                raise OmModelError(f"output {argmax.name!r} must be int32, is {argmax.dtype.name}")
            self._argmax = self._malloc_host(limits.max_seqs * 4).view(np.int32)
            self._argmax_pointer = pointers["argmax"]
            self._argmax_host = int(self._argmax.ctypes.data)
        self.output.attach(pointers.get("logits", 0), self._argmax)

    def _reshape(self, batch: PackedBatch) -> None:
        """Tell the model the step's shapes, those that differ from the last step's."""
        changed = False
        for each in self._step_inputs:
            shape = batch.view(each.source).shape
            if shape != self._shapes.get(each.index):
                each.check(shape)
                changed = True
                self._tell_shape(each, shape)
        if changed and self.bindings.gear_input is not None:
            self._choose_gear(self.bindings.gear_input.index)

    def _tell_shape(self, each: BoundInput, shape: tuple[int, ...]) -> None:
        if each.is_dynamic and self.bindings.gear_input is None:
            self._inputs.set_shape(each.index, each.dtype, shape)
        self._shapes[each.index] = shape

    def _choose_gear(self, index: int) -> None:
        # The stream is idle here: a gear is set by a copy that no stream orders.
        dims = [extent for _, shape in sorted(self._shapes.items()) for extent in shape]
        acl = self._device.acl
        code = acl.mdl.set_input_dynamic_dims(
            self.model_id,
            self._inputs.handle,
            index,
            {"name": "", "dimCount": len(dims), "dims": dims},
        )
        if code:
            for each in self._step_inputs:
                self._shapes.pop(each.index, None)
            gears = ", ".join(str(dict(gear)) for gear in self.manifest.gears)
            check(acl, "mdl.set_input_dynamic_dims", code, f"The artefact's gears are {gears}.")

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
