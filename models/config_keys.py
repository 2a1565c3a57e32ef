"""Typed reading of a configuration dictionary that remembers which keys were looked at."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from .errors import ConfigError

_MISSING: Any = object()
_MAX_INTEGER = 2**31 - 1  # shapes and ids are int32 all the way down
MAX_LAYERS = 4096  # bounds what a damaged file can make us allocate


class KeyReader:
    """Read keys of one configuration; a key that nobody read shows up in `unread()`.

    JSON `null` counts as absent, as it does in every Hugging Face configuration class.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self._read: set[str] = set()
        self.source = source  # file name for messages, e.g. "config.json"
        self.notes: list[str] = []

    def take(self, key: str, default: Any = None) -> Any:
        """Return the raw value of `key`, or `default` where it is absent or null."""
        self._read.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Tell whether `key` is there at all, null included."""
        return key in self._values

    def integer(
        self,
        key: str,
        default: int | None = _MISSING,
        minimum: int = 1,
        maximum: int = _MAX_INTEGER,
    ) -> Any:
        """Return an int from `minimum` to `maximum`; raises ConfigError for anything else."""
        value = self.take(key, default)
        if value is default and default is not _MISSING:
            return default
        if value is _MISSING:
            raise self.error(key, None, f"it is required: an integer of at least {minimum}")
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, value, f"allowed is an integer of at least {minimum}")
        if value > maximum:
            raise self.error(key, value, f"allowed is an integer of at most {maximum}")
        return value

    def number(self, key: str, default: float | None = _MISSING, above: float = 0.0) -> Any:
        """Return a finite float > `above`; raises ConfigError for anything else."""
        value = self.take(key, default)
        if value is default and default is not _MISSING:
            return default
        if value is _MISSING:
            raise self.error(key, None, f"it is required: a number above {above:g}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, value, f"allowed is a finite number above {above:g}")
        if not above < value <= sys.float_info.max:  # nan and infinity fail here too
            raise self.error(key, value, f"allowed is a finite number above {above:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return a JSON boolean; raises ConfigError for anything else."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self.error(key, value, "allowed are true and false")
        return value

    def refusals(self, neutral: Mapping[str, tuple[Any, ...]]) -> list[str]:
        """Return one text for each key that is there with a value that would have an effect.

        `neutral` lists, for keys that are not supported, the values that change nothing.
        """
        found = []
        for key, harmless in neutral.items():
            value = self.take(key)
            if value is None or value in harmless:
                continue
            allowed = " or ".join(["absent", *(shown(each) for each in harmless)])
            found.append(str(self.error(key, value, f"not supported, allowed is {allowed}")))
        return found

    def error(self, key: str, value: object, rule: str) -> ConfigError:
        """Build the error for one key: file, key, value given, rule."""
        given = "is missing" if value is None else f"is {shown(value)}"
        return ConfigError(f"{self.source}: {key} {given}; {rule}")

    def unread(self) -> list[str]:
        """Return the keys that no reader asked for, sorted."""
        return sorted(set(self._values) - self._read)


def shown(value: object) -> str:
    """Return a value as JSON-like text, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
