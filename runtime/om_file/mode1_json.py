"""The JSON form of a model that `atc --mode=1` prints.

Rules (parser/common/convert/pb2json.cc of GE): field names as keys, sorted, two-space indent;
maps as lists of {"key", "value"}; enumerations by name; a single float as a "%g" string when that
has at most 9 characters, else as a number; single bytes C-escaped, repeated bytes as they are;
unset fields absent; the fields below skipped wherever they occur; an empty message in a list is
null; at most 20 levels.
"""

from __future__ import annotations

import json
from typing import Any

SKIPPED_FIELDS = frozenset(
    {
        "output",
        "data_offset",
        "data",
        "workspace",
        "workspace_bytes",
        "memory_size",
        "weight_size",
        "size",
        "bt",
        "quantize_factor",
    }
)
_MAX_DEPTH = 20
_MAX_FLOAT_CHARS = 9  # GE formats into a buffer of ten
_ESCAPES = {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    ord('"'): '\\"',
    ord("'"): "\\'",
    ord("\\"): "\\\\",
}


def message_to_json(message: Any) -> str:
    """Return the document for a ModelDef message with plain attribute keys."""
    tree = _message(message, 0)
    return json.dumps({} if tree is None else tree, indent=2, sort_keys=True, ensure_ascii=False)


def c_escape(data: bytes) -> str:
    """Escape bytes as protobuf's CEscape: quotes, backslash, and octal outside of ASCII."""
    return "".join(
        _ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}")
        for byte in data
    )


def _message(message: Any, depth: int) -> Any:
    """Return a dict, or None where GE's JSON value stays null."""
    if depth > _MAX_DEPTH:
        return None
    tree: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.name in SKIPPED_FIELDS:
            continue
        value = getattr(message, field.name)
        if _is_repeated(field):
            if len(value):
                tree[field.name] = _repeated(field, value, depth)
        elif message.HasField(field.name) if field.has_presence else value:
            if field.message_type is None:
                tree[field.name] = _single(field, value)
            elif value.ByteSize():
                tree[field.name] = _message(value, depth + 1)
    return tree or None


def _is_repeated(field: Any) -> bool:
    """Older protobuf releases have `label`, newer ones only `is_repeated`."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def _repeated(field: Any, values: Any, depth: int) -> list[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return [_entry(key, values[key], depth) for key in sorted(values)]
    if field.message_type is not None:
        return [_message(item, depth + 1) for item in values]
    if field.type == field.TYPE_BYTES:
        return [_readable(item) for item in values]
    if field.enum_type is not None:
        return [_enum(field, item) for item in values]
    return list(values)


def _entry(key: str, value: Any, depth: int) -> dict[str, Any] | None:
    """Return a map entry: it is a message of its own, one level down, the value another."""
    tree: dict[str, Any] = {"key": key} if key else {}
    if isinstance(value, str):
        tree["value"] = value
    elif value.ByteSize():
        tree["value"] = _message(value, depth + 2)
    return tree or None


def _single(field: Any, value: Any) -> Any:
    if field.type == field.TYPE_BYTES:
        return c_escape(value)
    if field.type == field.TYPE_FLOAT:
        text = f"{value:g}"
        return text if len(text) <= _MAX_FLOAT_CHARS else value
    return _enum(field, value) if field.enum_type is not None else value


def _enum(field: Any, number: int) -> Any:
    known = field.enum_type.values_by_number.get(number)
    return number if known is None else known.name


def _readable(data: bytes) -> str:
    """Return text; GE's JSON library would throw on what is not UTF-8, we escape it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return c_escape(data)


__all__ = ["SKIPPED_FIELDS", "c_escape", "message_to_json"]
