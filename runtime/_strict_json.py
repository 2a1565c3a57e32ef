"""JSON objects to frozen dataclasses: every key known, every key present, every type right."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union

_T = TypeVar("_T")

# Metadata of a field that a document may lack: added after the first version of its format.
OPTIONAL: Mapping[str, Any] = types.MappingProxyType({"optional": True})


class StrictJsonError(ValueError):
    """A document does not have the shape its dataclass asks for; lists every problem."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


def decode(cls: type[_T], data: object) -> _T:
    """Build a dataclass from parsed JSON.

    Args:
        cls: a dataclass whose fields are str, int, float, bool, None, tuple[X, ...],
            Mapping[str, X], unions of these, or such dataclasses. Only a field whose metadata
            is OPTIONAL may be missing; it then has its default.
        data: the parsed JSON value.

    Raises:
        StrictJsonError: every unknown key (with a did-you-mean), missing key and wrong type.
    """
    problems: list[str] = []
    value = _decode(cls, data, "", problems)
    if problems:
        raise StrictJsonError(problems)
    return typing.cast(_T, value)


def encode(value: object) -> object:
    """Return plain JSON values of a dataclass, in the order of its fields.

    A field marked with `OPTIONAL` is left out while it has its default.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: encode(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not (OPTIONAL.items() <= field.metadata.items())
            or getattr(value, field.name) != field.default
        }
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    return value


def did_you_mean(word: str, known: list[str]) -> str:
    """Return " (did you mean 'x'?)" or the list of what is known."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(known)})"


def _decode(kind: Any, data: object, where: str, problems: list[str]) -> object:
    if dataclasses.is_dataclass(kind):
        return _decode_object(kind, data, where, problems)
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (Union, types.UnionType):
        for member in arguments:
            if _matches(member, data):
                return _decode(member, data, where, problems)
        return _wrong(kind, data, where, problems)
    if origin is tuple:
        if not isinstance(data, list):
            return _wrong("a list", data, where, problems)
        return tuple(
            _decode(arguments[0], item, f"{where}[{place}]", problems)
            for place, item in enumerate(data)
        )
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(data, dict):
            return _wrong("an object", data, where, problems)
        return {
            key: _decode(arguments[1], item, f"{where}.{key}".lstrip("."), problems)
            for key, item in data.items()
        }
    return data if _matches(kind, data) else _wrong(kind, data, where, problems)


def _matches(kind: Any, data: object) -> bool:
    if kind is type(None):
        return data is None
    if kind is bool or isinstance(data, bool):
        return kind is bool and isinstance(data, bool)
    if kind in (int, str):
        return isinstance(data, kind)
    if kind is float:
        return isinstance(data, (int, float))
    return isinstance(data, (dict, list))


def _wrong(kind: Any, data: object, where: str, problems: list[str]) -> object:
    """Note a value of the wrong type; the result stands in its place and is never used."""
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    problems.append(f"{where or 'document'}: must be {name}, is {repr(data)[:60]}")
    return None


def _decode_object(kind: Any, data: object, where: str, problems: list[str]) -> object:
    if not isinstance(data, dict):
        return _wrong("an object", data, where, problems)
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    before = len(problems)
    prefix = f"{where}." if where else ""
    for key in data:
        if key not in names:
            problems.append(f"unknown key {prefix}{key}{did_you_mean(str(key), names)}")
    for field in dataclasses.fields(kind):
        if field.name not in data and not OPTIONAL.items() <= field.metadata.items():
            problems.append(f"missing key {prefix}{field.name}")
    values = {
        name: _decode(hints[name], data[name], f"{prefix}{name}", problems)
        for name in names
        if name in data
    }
    if len(problems) > before:
        return None
    return _construct(kind, values, where, problems)


def _construct(
    kind: Callable[..., object], values: dict[str, object], where: str, problems: list[str]
) -> object:
    """Run the dataclass's own checks; their ValueError is one more problem."""
    try:
        return kind(**values)
    except ValueError as error:
        problems.append(f"{where or 'document'}: {error}")
        return None
