"""Element types: one row a dtype, with its numpy, ACL and GE-IR numbers.

GE has two enumerations of types that differ: the protobuf one in tensor descriptors and the
C++/ACL one in integer attributes, in MODEL_INOUT_INFO and in every pyACL call.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """One element type under all its names."""

    name: str
    numpy: np.dtype
    acl: int  # ACL / C++ ge::DataType
    ge_proto: int  # ge.proto.DataType in TensorDescriptor.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize


_ROWS = (
    DType("float32", np.dtype(np.float32), 0, 1),
    DType("float16", np.dtype(np.float16), 1, 2),
    DType("int8", np.dtype(np.int8), 2, 3),
    DType("int32", np.dtype(np.int32), 3, 7),
    DType("uint8", np.dtype(np.uint8), 4, 4),
    DType("int16", np.dtype(np.int16), 6, 5),
    DType("uint16", np.dtype(np.uint16), 7, 6),
    DType("uint32", np.dtype(np.uint32), 8, 9),
    DType("int64", np.dtype(np.int64), 9, 8),
    DType("uint64", np.dtype(np.uint64), 10, 10),
    DType("float64", np.dtype(np.float64), 11, 12),
    DType("bool", np.dtype(np.bool_), 12, 11),
    DType("bfloat16", np.dtype(ml_dtypes.bfloat16), 27, 27),
)

BY_NAME = MappingProxyType({row.name: row for row in _ROWS})
BY_ACL = MappingProxyType({row.acl: row for row in _ROWS})
BY_GE_PROTO = MappingProxyType({row.ge_proto: row for row in _ROWS})


def dtype(name: str) -> DType:
    """Return the row for a dtype name; raises ValueError naming the known ones."""
    try:
        return BY_NAME[name]
    except KeyError:
        raise ValueError(f"unknown dtype {name!r}: known are {', '.join(BY_NAME)}") from None
