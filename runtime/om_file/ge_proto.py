"""The protobuf messages of an OM file, built at run time from a table of fields.

MODEL_DEF is a `ge.proto.ModelDef`, TASK_INFO a `domi.ModelTaskDef`. A field that is not in the
table stays in the message as an unknown field: it survives reading and writing.

A line of the table is `number name kind`: kind ends with `*` for repeated, `{}` for
map<string, kind>, `|` for a member of the oneof `value`; kinds that start with a capital letter
are messages or enumerations of the same table.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_DATA_TYPES = (
    "UNDEFINED FLOAT FLOAT16 INT8 UINT8 INT16 UINT16 INT32 INT64 UINT32 UINT64 BOOL DOUBLE STRING "
    "DUAL_SUB_INT8 DUAL_SUB_UINT8 COMPLEX64 COMPLEX128 QINT8 QINT16 QINT32 QUINT8 QUINT16 RESOURCE "
    "STRING_REF DUAL VARIANT BF16 INT4 UINT1 INT2 UINT2 COMPLEX32 HIFLOAT8 FLOAT8_E5M2 "
    "FLOAT8_E4M3FN FLOAT8_E8M0 FLOAT6_E3M2 FLOAT6_E2M3 FLOAT4_E2M1 FLOAT4_E1M2 HIFLOAT4 "
    "HIFLOAT4_SCALE"
)
_LIST_KINDS = "NONE STRING INT FLOAT BOOL BYTES TENSOR_DESC TENSOR GRAPH NAMED_ATTRS DATA_TYPE"

_GE_ENUMS = {
    "DataType": tuple(f"DT_{name}" for name in _DATA_TYPES.split()),
    "ListValueType": tuple(f"VT_LIST_{name}" for name in _LIST_KINDS.split()),
}

_GE_MESSAGES = {
    "ListValue": """
        2 s bytes*
        3 i int64*
        4 f float*
        5 b bool*
        7 bt bytes*
        8 td TensorDescriptor*
        9 t TensorDef*
        10 g GraphDef*
        11 na NamedAttrs*
        12 dt int64*
        20 val_type ListValueType""",
    "ListInt": "1 list_i int64*",
    "ListListInt": "1 list_list_i ListInt*",
    "ListFloat": "1 list_f float*",
    "ListListFloat": "1 list_list_f ListFloat*",
    "AttrDef": """
        2 s bytes|
        3 i int64|
        4 f float|
        5 b bool|
        7 bt bytes|
        1 list ListValue|
        10 func NamedAttrs|
        11 td TensorDescriptor|
        12 t TensorDef|
        13 g GraphDef|
        14 list_list_int ListListInt|
        15 dt int64|
        16 list_list_float ListListFloat|
        17 expression bytes|""",
    "NamedAttrs": """
        1 name string
        2 attr AttrDef{}""",
    "ShapeDef": "1 dim int64*",
    "TensorDescriptor": """
        1 name string
        2 dtype DataType
        3 shape ShapeDef
        4 layout string
        5 attr AttrDef{}
        9 has_out_attr bool
        10 size int64
        11 weight_size int64
        12 reuse_input bool
        13 output_tensor bool
        14 device_type string
        15 input_tensor bool
        16 real_dim_cnt int64
        17 reuse_input_index int64
        18 data_offset int64
        19 cmps_size int64
        20 cmps_tab string
        21 cmps_tab_offset int64""",
    "TensorDef": """
        1 desc TensorDescriptor
        2 data bytes""",
    "OpDef": """
        1 name string
        2 type string
        5 input string*
        10 attr AttrDef{}
        20 has_out_attr bool
        21 id int64
        22 stream_id int64
        23 input_name string*
        24 src_name string*
        25 src_index int64*
        26 dst_name string*
        27 dst_index int64*
        28 input_i int64*
        29 output_i int64*
        30 workspace int64*
        31 workspace_bytes int64*
        32 is_input_const bool*
        33 input_desc TensorDescriptor*
        34 output_desc TensorDescriptor*
        35 subgraph_name string*""",
    "GraphDef": """
        1 name string
        4 input string*
        5 output string*
        6 op OpDef*
        11 attr AttrDef{}""",
    "ModelDef": """
        1 name string
        2 version uint32
        3 custom_version string
        7 graph GraphDef*
        11 attr AttrDef{}""",
}

_TASK_MESSAGES = {
    "ModelTaskDef": """
        1 version string
        9 attr string{}
        10 task TaskDef*
        11 memory_size uint64
        12 stream_num uint32
        13 event_num uint32
        14 weight_size uint64
        15 op bytes*
        16 base_addr uint64
        17 weight_addr uint64
        18 batch_num uint32""",
    "TaskDef": """
        1 id uint32
        2 type uint32
        10 stream_id uint32
        11 event_id uint32
        12 notify_id uint32
        13 sqe_num uint32
        20 kernel KernelDef""",
    "KernelDef": """
        1 context KernelContext
        10 stub_func string
        11 block_dim uint32
        12 args_size uint32
        13 args bytes
        14 sm_desc bytes
        15 flowtable bytes
        16 so_name string
        17 kernel_name string""",
    "KernelContext": """
        1 kernel_type uint32
        2 op_id uint32
        3 kernel_func_id uint32
        4 op_index uint32
        5 is_flowtable bool
        6 args_offset bytes
        7 args_count uint32
        8 origin_op_index uint32*
        10 args_format string""",
}


def message_class(name: str) -> Any:
    """Return the message class of a table's row by its short name, for example "ModelDef"."""
    package = "domi" if name in _TASK_MESSAGES else "ge.proto"
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"{package}.{name}"))


def data_type_names() -> tuple[str, ...]:
    """Return the names of ge.proto.DataType by number, for example "DT_FLOAT" at 1."""
    return _GE_ENUMS["DataType"]


@cache
def _pool() -> Any:
    """Return a private pool, so that another program's GE definitions cannot collide with ours."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file("pagedom/ge_ir", "ge.proto", _GE_MESSAGES, _GE_ENUMS))
    pool.Add(_file("pagedom/task", "domi", _TASK_MESSAGES, {}))
    return pool


def _file(
    name: str, package: str, messages: dict[str, str], enums: dict[str, tuple[str, ...]]
) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    for enum_name, values in enums.items():
        enum = file.enum_type.add(name=enum_name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for message_name, table in messages.items():
        message = file.message_type.add(name=message_name)
        for line in table.strip().splitlines():
            number_text, field_name, kind = line.split()
            _add_field(message, package, int(number_text), field_name, kind, set(enums))
    return file


def _add_field(
    message: Any, package: str, number: int, name: str, kind: str, enums: set[str]
) -> None:
    types = descriptor_pb2.FieldDescriptorProto
    field = message.field.add(name=name, number=number, label=types.LABEL_OPTIONAL)
    bare = kind.rstrip("*{}|")
    if kind.endswith("{}"):
        entry_name = f"{name.title().replace('_', '')}Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        _add_field(entry, package, 1, "key", "string", enums)
        _add_field(entry, package, 2, "value", bare, enums)
        field.label = types.LABEL_REPEATED
        field.type = types.TYPE_MESSAGE
        field.type_name = f".{package}.{message.name}.{entry_name}"
        return
    if kind.endswith("*"):
        field.label = types.LABEL_REPEATED
    if kind.endswith("|"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="value")
        field.oneof_index = 0
    if bare[0].isupper():
        field.type = types.TYPE_ENUM if bare in enums else types.TYPE_MESSAGE
        field.type_name = f".{package}.{bare}"
    else:
        field.type = types.Type.Value(f"TYPE_{bare.upper()}")
