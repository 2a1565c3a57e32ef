"""Undo GE's attribute compression (ENABLE_ATTR_COMPRESSION, on by default in ATC).

The model carries a dictionary of names and one of values. In operators and tensor descriptors a
key becomes "\\0" and the index in base 127, least significant digit first, each digit plus one;
for the names marked in `attrs_use_string_value` the value is an int (or a list of ints) that
indexes the dictionary of values. Source: base/common/model/model_compress_manager.cc and
graph/utils/enum_attr_utils.cc of the open graph engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .errors import OmFormatError
from .ge_proto import message_class

VERSION_KEY = "om_compress_version"
NAMES_KEY = "attr_name_enum"
VALUES_KEY = "attr_value_enum"
MASK_KEY = "attrs_use_string_value"
DICTIONARY_KEYS = (VERSION_KEY, NAMES_KEY, VALUES_KEY, MASK_KEY)
_BASE = 127
_MAX_DIGITS = 9  # 127**9 is above any index that fits in a file
_STRING_LIST = 1  # ListValueType VT_LIST_STRING


@dataclass(frozen=True)
class AttrDictionary:
    """The dictionaries of a file; in an unknown-shape one the root model has them for all."""

    names: tuple[str, ...]
    values: tuple[bytes, ...]
    value_is_string: tuple[bool, ...]

    def index(self, key: str) -> int | None:
        """Return the index that a compressed key stands for, None for a plain key."""
        if not key.startswith("\0"):
            return None
        index = decode_index(key)
        if index >= len(self.names) or index >= len(self.value_is_string):
            raise OmFormatError(
                f"compressed attribute key {key!r} is entry {index} of the dictionary "
                f"{NAMES_KEY}, which has {len(self.names)} names and "
                f"{len(self.value_is_string)} flags"
            )
        return index

    def value(self, index: int) -> bytes:
        """Return a string value by its index."""
        if not 0 <= index < len(self.values):
            raise OmFormatError(
                f"compressed attribute value {index} is outside the dictionary {VALUES_KEY} "
                f"of {len(self.values)} values"
            )
        return self.values[index]


def decode_index(key: str) -> int:
    """Return the number of a compressed key; raises OmFormatError for an impossible one."""
    digits = [ord(char) - 1 for char in key[1:]]
    if not digits or len(digits) > _MAX_DIGITS or not all(0 <= d < _BASE for d in digits):
        raise OmFormatError(f"attribute key {key!r} is not a compressed key: base-127 digits, +1")
    return sum(digit * _BASE**place for place, digit in enumerate(digits))


def encode_index(index: int) -> str:
    """Return the compressed key of a dictionary index (the reverse of decode_index)."""
    digits = []
    while True:
        index, digit = divmod(index, _BASE)
        digits.append(chr(digit + 1))
        if not index:
            return "\0" + "".join(digits)


def dictionary_of(model: Any) -> AttrDictionary | None:
    """Return the dictionary of a ModelDef message, None when it is not compressed."""
    attr = model.attr
    if VERSION_KEY not in attr or attr[VERSION_KEY].i != 1:
        return None
    missing = [key for key in DICTIONARY_KEYS if key not in attr]
    if missing:
        raise OmFormatError(f"the model says {VERSION_KEY}=1 but has no {', '.join(missing)}")
    return AttrDictionary(
        names=tuple(name.decode("utf-8", "replace") for name in attr[NAMES_KEY].list.s),
        values=tuple(attr[VALUES_KEY].list.s),
        value_is_string=tuple(attr[MASK_KEY].list.b),
    )


def decompress(model: Any, inherited: AttrDictionary | None = None) -> AttrDictionary | None:
    """Decompress a ModelDef message in place; return the dictionary that was used.

    Args:
        model: the message; its dictionary attributes are removed.
        inherited: the root model's dictionary, for a sub-model without its own.
    """
    dictionary = dictionary_of(model) or inherited
    if dictionary is None:
        return None
    for attrs in _attr_maps(model):
        _decompress_map(attrs, dictionary)
    for key in DICTIONARY_KEYS:
        if key in model.attr:
            del model.attr[key]
    return dictionary


def _attr_maps(model: Any) -> Iterator[Any]:
    for graph in model.graph:
        yield graph.attr
        for op in graph.op:
            yield op.attr
            for desc in (*op.input_desc, *op.output_desc):
                yield desc.attr


def _decompress_map(attrs: Any, dictionary: AttrDictionary) -> None:
    for key in [key for key in attrs if key.startswith("\0")]:
        index = dictionary.index(key)
        if index is None:
            continue
        attr = message_class("AttrDef")()
        attr.CopyFrom(attrs[key])
        if dictionary.value_is_string[index]:
            _restore_strings(attr, dictionary)
        del attrs[key]
        attrs[dictionary.names[index]].CopyFrom(attr)


def _restore_strings(attr: Any, dictionary: AttrDictionary) -> None:
    kind = attr.WhichOneof("value")
    if kind == "i":
        attr.s = dictionary.value(attr.i)
    elif kind == "list":
        attr.list.s.extend(dictionary.value(index) for index in attr.list.i)
        del attr.list.i[:]
        attr.list.val_type = _STRING_LIST
