"""TensorDesc <-> ge.proto.TensorDescriptor, with the attributes that GE writes on every one.

GE's serializer puts the origin shape, format and dtype on each descriptor as attributes; its
loader reads them back, so a descriptor of ours carries them too. A descriptor that came from a
file keeps in `extra` everything that TensorDesc has no field for, and is written back with that.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import dtypes
from .ge_graph import ListListInt, TensorDesc
from .ge_proto import data_type_names, message_class

# ge::Format by name: the numbers are written as integer attributes and in MODEL_INOUT_INFO.
FORMATS = {
    "NCHW": 0,
    "NHWC": 1,
    "ND": 2,
    "NC1HWC0": 3,
    "FRACTAL_Z": 4,
    "NC1C0HWPAD": 5,
    "NHWC1C0": 6,
    "FRACTAL_NZ": 29,
    "RESERVED": 40,
}
FORMAT_NAMES = {number: name for name, number in FORMATS.items()}

_MODELLED = ("name", "dtype", "shape", "layout")


def dtype_name(number: int) -> str:
    """Return our name of a ge.proto.DataType number; "string", "int4", ... where numpy has none."""
    row = dtypes.BY_GE_PROTO.get(number)
    if row is not None:
        return row.name
    names = data_type_names()
    if 0 <= number < len(names):
        return names[number].removeprefix("DT_").lower()
    return f"dtype_{number}"


def dtype_number(name: str) -> int:
    """Return the ge.proto.DataType number of our name; raises ValueError for an unknown one."""
    row = dtypes.BY_NAME.get(name)
    if row is not None:
        return row.ge_proto
    proto_name = f"DT_{name.upper()}"
    if proto_name in data_type_names():
        return data_type_names().index(proto_name)
    if name.startswith("dtype_") and name[6:].isdigit():
        return int(name[6:])
    raise ValueError(f"unknown dtype {name!r}: known are {', '.join(dtypes.BY_NAME)}")


def tensor_nbytes(desc: TensorDesc) -> int:
    """Return the bytes of a static tensor; 0 for a dynamic shape or a dtype without a size."""
    row = dtypes.BY_NAME.get(desc.dtype)
    return 0 if row is None or desc.is_dynamic else row.itemsize * desc.num_elements


def desc_from_proto(message: Any) -> TensorDesc:
    """Read a TensorDescriptor message; what TensorDesc has no field for goes into `extra`."""
    rest = message_class("TensorDescriptor")()
    rest.CopyFrom(message)
    for field in _MODELLED:
        rest.ClearField(field)
    return TensorDesc(
        dtype=dtype_name(message.dtype),
        shape=tuple(message.shape.dim),
        name=message.name,
        format=message.layout,
        extra=rest.SerializeToString(deterministic=True),
    )


def desc_to_proto(desc: TensorDesc, message: Any) -> None:
    """Fill a TensorDescriptor message from a TensorDesc."""
    if desc.extra is not None:
        message.MergeFromString(desc.extra)
    else:
        _add_standard_fields(desc, message)
    message.name = desc.name
    message.dtype = dtype_number(desc.dtype)
    message.layout = desc.format
    message.shape.SetInParent()
    message.shape.dim.extend(desc.shape)


def _add_standard_fields(desc: TensorDesc, message: Any) -> None:
    message.size = tensor_nbytes(desc)
    message.device_type = "NPU"
    message.real_dim_cnt = len(desc.shape)
    attr = message.attr
    number = FORMATS.get(desc.format, FORMATS["ND"])
    attr["origin_format"].s = desc.format.encode()
    attr["origin_format_for_int"].i = number
    attr["format_for_int"].i = number
    attr["origin_shape_initialized"].b = True
    # val_type stays unset in these lists, as in GE's own serializer.
    origin = attr["origin_shape"].list
    origin.SetInParent()
    origin.i.extend(desc.shape)
    if desc.is_dynamic and desc.shape != (-2,):
        ranges = tuple((1, -1) if extent < 0 else (extent, extent) for extent in desc.shape)
        for key in ("shape_range", "origin_shape_range"):
            set_list_list_int(attr[key], ListListInt(ranges))


def set_list_list_int(attr: Any, value: ListListInt) -> None:
    """Fill an AttrDef with a list_list_int."""
    attr.list_list_int.SetInParent()
    for row in value.rows:
        attr.list_list_int.list_list_i.add().list_i.extend(row)


def array_desc(array: np.ndarray) -> TensorDesc:
    """Return the descriptor of an inline constant; raises ValueError for a dtype GE has not."""
    return TensorDesc(dtypes.dtype(array.dtype.name).name, tuple(int(n) for n in array.shape))
