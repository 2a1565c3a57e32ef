"""An infer request's tensors over the device's memory, rebound only when something moved.

In a steady run of decode steps the same views come with the same shapes, so a step binds next to
nothing; a Python call here costs microseconds, because the weights have just swept the caches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ..executor import Array

Bytes = NDArray[np.uint8]
_SHORT = {"bfloat16": ov.Type.bf16, "float16": ov.Type.f16}


class RequestFeed:
    """Binds one request's inputs and outputs; holds on to what the request only points at."""

    def __init__(self, request: Any, inputs: dict[str, Any]) -> None:
        """`inputs`: ports of the compiled model by name."""
        self._request = request
        self._ports = inputs
        self._seen: dict[str, Array] = {}  # the array object that an input is bound to
        self._tensors: dict[str, tuple[ov.Tensor, Array]] = {}
        self._tables: dict[str, NDArray[np.int32]] = {}
        self._outputs: dict[int, tuple[Bytes, Array]] = {}

    def set(self, name: str, array: Array) -> None:
        """Bind an input to an array, which must live until the run is over."""
        if self._seen.get(name) is array:
            return
        if array.dtype.itemsize == 2:  # numpy has no bfloat16 that OpenVINO knows
            tensor = ov.Tensor(
                array.view(np.uint16), ov.Shape(array.shape), _SHORT[array.dtype.name]
            )
        else:
            tensor = ov.Tensor(array, shared_memory=True)
        self.set_tensor(name, tensor, array)

    def set_tensor(self, name: str, tensor: ov.Tensor, array: Array) -> None:
        """Bind an input to a tensor over `array`."""
        self._seen[name] = array
        self._tensors[name] = tensor, array
        self._request.set_tensor(self._ports[name], tensor)

    def is_bound(self, name: str, array: Array) -> bool:
        """Whether the input is bound to this very array."""
        return self._seen.get(name) is array

    def note(self, name: str, array: Array) -> None:
        """Remember an array under a name that is no input, for `is_bound`."""
        self._seen[name] = array

    def fill(self, name: str, values: Array) -> None:
        """Copy values into the int32 tensor of an input, made anew only for another shape."""
        table = self._tables.get(name)
        if table is None or table.shape != values.shape:
            table = self._tables[name] = np.empty(values.shape, np.int32)
            self.set(name, table)
        np.copyto(table, values, casting="unsafe")

    def bind_output(self, number: int, target: Bytes, view: Array) -> None:
        """Let result `number` be written straight into `view`, which lies in `target`."""
        bound = self._outputs.get(number)
        if bound is None or bound[0] is not target or bound[1].shape != view.shape:
            self._request.set_output_tensor(number, ov.Tensor(view, shared_memory=True))
            self._outputs[number] = target, view

    def own_output(self, number: int, element: Any) -> None:
        """Let result `number` go to memory of the request's own, which grows as needed."""
        if self._outputs.pop(number, None) is not None:
            self._request.set_output_tensor(number, ov.Tensor(element, ov.Shape([0])))

    def close(self) -> None:
        """Let go of every view of the caller's memory."""
        for held in (self._seen, self._tensors, self._tables, self._outputs):
            held.clear()
