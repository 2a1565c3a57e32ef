"""Attribute values: ge.proto.AttrDef <-> Python.

| AttrDef            | Python                                                              |
|--------------------|---------------------------------------------------------------------|
| s · bt             | str (UTF-8, surrogate escapes for other bytes) · bytes              |
| i · f · b          | int · float (stored as float32) · bool                              |
| dt                 | DataTypeValue                                                       |
| td                 | TensorDesc                                                          |
| t                  | WeightRef when the bytes are in WEIGHTS_DATA, else InlineArray      |
| list_list_int      | ListListInt                                                         |
| list of the above  | list (str, bytes, int, float, bool, DataTypeValue, TensorDesc)      |
| empty list         | EmptyList with the declared kind                                    |
| everything else    | OpaqueAttr with the serialized AttrDef                              |
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from .errors import OmFormatError
from .ge_graph import (
    DataTypeValue,
    EmptyList,
    InlineArray,
    ListListInt,
    OpaqueAttr,
    TensorDesc,
    WeightRef,
)
from .ge_proto import message_class
from .tensor_proto import (
    array_desc,
    desc_from_proto,
    desc_to_proto,
    set_list_list_int,
    tensor_nbytes,
)

# Lists that GE's serializer writes without a val_type.
UNTYPED_LISTS = frozenset(
    {
        "_input_name_key",
        "_input_name_value",
        "_output_name_key",
        "_output_name_value",
        "_opt_input",
        "_ir_attr_names",
        "_ir_inputs_key",
        "_ir_inputs_value",
        "_ir_outputs_key",
        "_ir_outputs_value",
    }
)
_LIST_FIELDS = ("s", "i", "f", "b", "bt", "td", "t", "g", "na", "dt")
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


def attr_to_python(attr: Any) -> Any:
    """Return the Python form of an AttrDef message (table in the module's docstring)."""
    kind = attr.WhichOneof("value")
    if kind == "s":
        return attr.s.decode("utf-8", "surrogateescape")
    if kind in ("i", "f", "b", "bt"):
        return getattr(attr, kind)
    if kind == "dt":
        return DataTypeValue(attr.dt)
    if kind == "td":
        return desc_from_proto(attr.td)
    if kind == "t":
        value = _tensor_to_python(attr.t)
        return OpaqueAttr(attr.SerializeToString(deterministic=True)) if value is None else value
    if kind == "list_list_int":
        return ListListInt(tuple(tuple(row.list_i) for row in attr.list_list_int.list_list_i))
    if kind == "list":
        return _list_to_python(attr)
    return OpaqueAttr(attr.SerializeToString(deterministic=True))


def _list_to_python(attr: Any) -> Any:
    filled = [field for field in _LIST_FIELDS if len(getattr(attr.list, field))]
    if not filled:
        return EmptyList(attr.list.val_type)
    if len(filled) > 1 or filled[0] in ("t", "g", "na"):
        return OpaqueAttr(attr.SerializeToString(deterministic=True))
    values = list(getattr(attr.list, filled[0]))
    if filled[0] == "s":
        return [value.decode("utf-8", "surrogateescape") for value in values]
    if filled[0] == "td":
        return [desc_from_proto(value) for value in values]
    if filled[0] == "dt":
        return [DataTypeValue(value) for value in values]
    return values


def _tensor_to_python(tensor: Any) -> WeightRef | np.ndarray | None:
    desc = desc_from_proto(tensor.desc)
    row = dtypes.BY_NAME.get(desc.dtype)
    if len(tensor.data):
        if row is None or len(tensor.data) != tensor_nbytes(desc):
            return None
        flat = np.frombuffer(tensor.data, dtype=row.numpy)
        array = flat.reshape(desc.shape).view(InlineArray)
        array.desc = desc
        return array
    if row is not None and desc.num_elements == 0:
        return np.empty(desc.shape, dtype=row.numpy)
    nbytes = tensor.desc.weight_size or tensor_nbytes(desc)
    return WeightRef(tensor.desc.data_offset, nbytes, desc)


def attr_from_python(attr: Any, name: str, value: Any) -> None:
    """Fill an AttrDef message; raises OmFormatError for a value that GE-IR cannot hold."""
    if isinstance(value, OpaqueAttr):
        attr.MergeFromString(value.data)
    elif isinstance(value, (bool, np.bool_)):  # before int: bool is an int in Python
        attr.b = bool(value)
    elif isinstance(value, (int, np.integer)):
        attr.i = _checked_int(name, int(value))
    elif isinstance(value, (float, np.floating)):
        attr.f = float(value)
    elif isinstance(value, str):
        attr.s = value.encode("utf-8", "surrogateescape")
    elif isinstance(value, bytes):
        attr.bt = value
    elif isinstance(value, DataTypeValue):
        attr.dt = value.number
    elif isinstance(value, TensorDesc):
        desc_to_proto(value, attr.td)
    elif isinstance(value, ListListInt):
        set_list_list_int(attr, value)
    elif isinstance(value, WeightRef):
        _fill_weight(attr.t, value)
    elif isinstance(value, np.ndarray):
        _fill_array(attr.t, value)
    elif isinstance(value, (list, tuple)):
        _fill_list(attr.list, name, value)
    else:
        raise OmFormatError(
            f"attribute {name!r} has a value of type {type(value).__name__}, which GE-IR cannot "
            "hold: allowed are int, float, str, bool, bytes, lists of these, ListListInt, "
            "WeightRef, np.ndarray, TensorDesc, DataTypeValue"
        )


def _fill_weight(tensor: Any, ref: WeightRef) -> None:
    desc_to_proto(ref.desc, tensor.desc)
    tensor.desc.data_offset = ref.offset
    tensor.desc.weight_size = ref.nbytes
    if ref.desc.extra is None:
        tensor.desc.size = ref.nbytes


def _fill_array(tensor: Any, array: np.ndarray) -> None:
    known = array.desc if isinstance(array, InlineArray) else None
    if known is not None and known.shape == array.shape and known.dtype == array.dtype.name:
        desc_to_proto(known, tensor.desc)
    else:
        desc_to_proto(array_desc(array), tensor.desc)
        tensor.desc.weight_size = array.nbytes
    tensor.data = array.tobytes()


def _fill_list(message: Any, name: str, values: list[Any] | tuple[Any, ...]) -> None:
    message.SetInParent()
    if not values:
        message.val_type = values.val_type if isinstance(values, EmptyList) else 0
        return
    kinds = message_class("ListValue").DESCRIPTOR.fields_by_name["val_type"].enum_type
    field, kind = _list_kind(name, values)
    if name not in UNTYPED_LISTS:
        message.val_type = kinds.values_by_name[kind].number
    if field == "td":
        for value in values:
            desc_to_proto(value, message.td.add())
    elif field == "s":
        message.s.extend(value.encode("utf-8", "surrogateescape") for value in values)
    elif field == "dt":
        message.dt.extend(value.number for value in values)
    elif field == "i":
        message.i.extend(_checked_int(name, int(value)) for value in values)
    else:
        getattr(message, field).extend(values)


def _list_kind(name: str, values: list[Any] | tuple[Any, ...]) -> tuple[str, str]:
    """Return the ListValue field and kind for values of one type; ints among floats are floats."""
    table: tuple[tuple[str, str, tuple[type, ...]], ...] = (
        ("b", "VT_LIST_BOOL", (bool, np.bool_)),
        ("i", "VT_LIST_INT", (int, np.integer)),
        ("f", "VT_LIST_FLOAT", (float, np.floating, int, np.integer)),
        ("s", "VT_LIST_STRING", (str,)),
        ("bt", "VT_LIST_BYTES", (bytes,)),
        ("dt", "VT_LIST_DATA_TYPE", (DataTypeValue,)),
        ("td", "VT_LIST_TENSOR_DESC", (TensorDesc,)),
    )
    has_bool = any(isinstance(value, (bool, np.bool_)) for value in values)
    for field, kind, types in table:
        if has_bool and field != "b":
            continue
        if all(isinstance(value, types) for value in values):
            return field, kind
    found = sorted({type(value).__name__ for value in values})
    raise OmFormatError(f"attribute {name!r} is a list that mixes or holds {', '.join(found)}")


def _checked_int(name: str, value: int) -> int:
    if not _INT_MIN <= value <= _INT_MAX:
        raise OmFormatError(f"attribute {name!r} is {value}, which does not fit int64")
    return value
