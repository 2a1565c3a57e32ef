"""pyACL's questions about a model: counts, sizes, dims, names, gears."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .constants import MAX_DIMS, AclFormat
from .error_table import API_NOT_SUPPORT, INVALID_MODEL_ID, INVALID_PARAM
from .host_core import HostCore
from .host_interface import Io, ModelInterface
from .host_model import MODEL, Models

DESC = "model desc"
Dims = dict[str, Any]


class ModelDesc:
    """A description; empty until get_desc filled it."""

    def __init__(self) -> None:
        self.interface: ModelInterface | None = None
        self.model_id = 0


class ModelDescs:
    """Calls on model descriptions. None of them needs a context."""

    def __init__(self, core: HostCore, models: Models) -> None:
        self._core = core
        self._models = models
        self._descs: dict[int, ModelDesc] = {}

    def create_desc(self) -> int:
        """Return an empty description."""
        handle = self._core.new_handle()
        self._descs[handle] = ModelDesc()
        self._core.ledger.opened(DESC, handle)
        return handle

    def destroy_desc(self, desc: int, /) -> int:
        """Destroy a description."""
        if self._descs.pop(desc, None) is None:
            return self._core.bad_handle(DESC, desc)
        self._core.ledger.closed(DESC, desc)
        return 0

    def get_desc(self, desc: int, model_id: int, /) -> int:
        """Fill a description from a loaded model."""
        found, model = self._descs.get(desc), self._models.peek(model_id)
        if found is None:
            return self._core.bad_handle(DESC, desc)
        if model is None:
            return self._core.bad_handle(MODEL, model_id, INVALID_MODEL_ID)
        found.interface, found.model_id = model.interface, model_id
        return 0

    def get_desc_from_file(self, desc: int, path: str, /) -> int:
        """Fill a description from a file."""
        found = self._descs.get(desc)
        if found is None:
            return self._core.bad_handle(DESC, desc)
        interface = self._models.interface_of(path)
        if isinstance(interface, int):
            return interface
        found.interface, found.model_id = interface, 0
        return 0

    def query_size(self, path: str, /) -> tuple[int, int, int]:
        """Return (work bytes, weight bytes, ret); does not apply to range models."""
        interface = self._models.interface_of(path)
        if isinstance(interface, int):
            return 0, 0, interface
        if interface.mode == "range":
            return 0, 0, self._core.fail(API_NOT_SUPPORT, "mdl.query_size: the OM has ranges")
        return 0, interface.weight_bytes, 0

    def get_num_inputs(self, desc: int, /) -> int:
        """Return the number of inputs, hidden ones included; 0 for a bad handle."""
        return len(self._inputs(desc))

    def get_num_outputs(self, desc: int, /) -> int:
        """Return the number of outputs; 0 for a bad handle."""
        return len(self._outputs(desc))

    def get_input_size_by_index(self, desc: int, index: int, /) -> int:
        """Return bytes: of the largest gear, 0 where the shape has -1."""
        interface = self._interface(desc)
        if interface is None or not 0 <= index < len(interface.inputs):
            return 0
        return interface.input_bytes(index)

    def get_output_size_by_index(self, desc: int, index: int, /) -> int:
        """Return bytes: of the largest gear, 0 where the shape has -1."""
        interface = self._interface(desc)
        if interface is None or not 0 <= index < len(interface.outputs):
            return 0
        return interface.output_bytes(index)

    def get_input_dims(self, desc: int, index: int, /) -> tuple[Dims, int]:
        """Return ({name, dimCount, dims}, ret) as compiled."""
        return self._dims(self._inputs(desc), index)

    def get_output_dims(self, desc: int, index: int, /) -> tuple[Dims, int]:
        """Return ({name, dimCount, dims}, ret) as compiled."""
        return self._dims(self._outputs(desc), index)

    def get_cur_output_dims(self, desc: int, index: int, /) -> tuple[Dims, int]:
        """Return the current gear's dims; 200001 on a range model."""
        found = self._descs.get(desc)
        interface = None if found is None else found.interface
        if found is None or interface is None or not 0 <= index < len(interface.outputs):
            return {}, self._bad_index(index)
        if interface.mode == "range":
            return {}, self._core.fail(
                API_NOT_SUPPORT,
                "EH0011: mdl.get_cur_output_dims: not for range models; read the tensor desc of "
                "the output dataset after the run",
            )
        if interface.mode == "static":
            return self._dims(interface.outputs, index)
        model = self._models.peek(found.model_id)
        gear = interface.largest_gear if model is None or model.gear < 0 else model.gear
        return _dims_dict(interface.outputs[index].name, interface.gears[gear].outputs[index]), 0

    def get_input_dims_range(self, desc: int, index: int, /) -> tuple[Dims, int]:
        """Return ({rangeCount, range}, ret): one [least, most] pair an extent, -1 = no limit."""
        ios = self._inputs(desc)
        if not 0 <= index < len(ios):
            return {}, self._bad_index(index)
        pairs = [[1, -1] if extent < 0 else [extent, extent] for extent in ios[index].dims]
        return {"rangeCount": len(pairs), "range": pairs}, 0

    def get_input_data_type(self, desc: int, index: int, /) -> int:
        """Return the ACL dtype, -1 for a bad index."""
        return _dtype(self._inputs(desc), index)

    def get_output_data_type(self, desc: int, index: int, /) -> int:
        """Return the ACL dtype, -1 for a bad index."""
        return _dtype(self._outputs(desc), index)

    def get_input_format(self, desc: int, index: int, /) -> int:
        """Return ND, or -1 for a bad index."""
        return int(AclFormat.ND) if 0 <= index < len(self._inputs(desc)) else -1

    def get_output_format(self, desc: int, index: int, /) -> int:
        """Return ND, or -1 for a bad index."""
        return int(AclFormat.ND) if 0 <= index < len(self._outputs(desc)) else -1

    def get_input_name_by_index(self, desc: int, index: int, /) -> str:
        """Return the name, "" for a bad index."""
        return _name(self._inputs(desc), index)

    def get_output_name_by_index(self, desc: int, index: int, /) -> str:
        """Return the name, "" for a bad index."""
        return _name(self._outputs(desc), index)

    def get_input_index_by_name(self, desc: int, name: str, /) -> tuple[int, int]:
        """Return (index, ret)."""
        return self._index(self._inputs(desc), name)

    def get_output_index_by_name(self, desc: int, name: str, /) -> tuple[int, int]:
        """Return (index, ret)."""
        return self._index(self._outputs(desc), name)

    def get_tensor_real_name(self, desc: int, name: str, /) -> str:
        """Return the name: nothing is shortened here."""
        return name

    def get_dynamic_batch(self, desc: int, /) -> tuple[Dims, int]:
        """Return no batches: dynamic_batch models do not exist here."""
        if self._interface(desc) is None:
            return {}, self._core.bad_handle(DESC, desc)
        return {"batchCount": 0, "batch": []}, 0

    def get_input_dynamic_gear_count(self, desc: int, index: int, /) -> tuple[int, int]:
        """Return (number of gears, ret); the index must be -1."""
        interface = self._interface(desc)
        if interface is None or index != -1:
            return 0, self._bad_index(index)
        return len(interface.gears), 0

    def get_input_dynamic_dims(
        self, desc: int, index: int, count: int, /
    ) -> tuple[list[Dims], int]:
        """Return (one dims dict a gear over all inputs, ret); the index must be -1."""
        interface = self._interface(desc)
        if interface is None or index != -1 or count < len(interface.gears):
            return [], self._bad_index(index)
        return [_dims_dict("", interface.gear_dims(gear)) for gear in interface.gears], 0

    def clear(self) -> None:
        """Forget everything (finalize)."""
        self._descs.clear()

    def _interface(self, desc: int) -> ModelInterface | None:
        found = self._descs.get(desc)
        return None if found is None else found.interface

    def _inputs(self, desc: int) -> Sequence[Io]:
        interface = self._interface(desc)
        return () if interface is None else interface.inputs

    def _outputs(self, desc: int) -> Sequence[Io]:
        interface = self._interface(desc)
        return () if interface is None else interface.outputs

    def _dims(self, ios: Sequence[Io], index: int) -> tuple[Dims, int]:
        if not 0 <= index < len(ios):
            return {}, self._bad_index(index)
        return _dims_dict(ios[index].name, ios[index].dims), 0

    def _index(self, ios: Sequence[Io], name: str) -> tuple[int, int]:
        for index, io in enumerate(ios):
            if io.name == name:
                return index, 0
        known = ", ".join(io.name for io in ios)
        return 0, self._core.fail(INVALID_PARAM, f"EH0001: no tensor {name!r} among {known}")

    def _bad_index(self, index: int) -> int:
        return self._core.fail(INVALID_PARAM, f"EH0001: bad model desc, or bad index {index}")


def _dims_dict(name: str, dims: Sequence[int]) -> Dims:
    shown = list(dims)[:MAX_DIMS]
    return {"name": name, "dimCount": len(shown), "dims": shown}


def _dtype(ios: Sequence[Io], index: int) -> int:
    return ios[index].dtype.acl if 0 <= index < len(ios) else -1


def _name(ios: Sequence[Io], index: int) -> str:
    return ios[index].name if 0 <= index < len(ios) else ""
