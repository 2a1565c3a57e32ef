"""Numbers for people: bytes in a unit in which they say something, and things counted."""

from __future__ import annotations

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size_text(nbytes: int) -> str:
    """Return a size such as "9.80 GiB", "1.50 MiB" or "512 B"; a negative one with its sign."""
    for unit, name in _UNITS:
        if abs(nbytes) >= unit:
            return f"{nbytes / unit:.2f} {name}"
    return f"{nbytes} B"


def counted(number: int, noun: str) -> str:
    """Return "1 page" or "1,024 pages"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
