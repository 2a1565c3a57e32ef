"""What the commands write: answers to stdout, everything about them to stderr."""

from __future__ import annotations

import re

import click

_UNITS = ("", "K", "M", "G", "T")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def write(text: str) -> None:
    """Write a piece of an answer to stdout at once."""
    click.echo(text, nl=False)


def note(text: str) -> None:
    """Write a remark about the run to stderr, dimly."""
    click.echo(click.style(text, dim=True), err=True)


def human_bytes(num_bytes: int) -> str:
    """Return a size such as "1.5 MiB"."""
    size, unit = float(num_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{num_bytes} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}iB"


def rate(count: int, seconds: float | None) -> str:
    """Return "123.4 tok/s", or "-" where no time was measured."""
    return f"{count / seconds:.1f} tok/s" if seconds else "-"


def byte_size(value: str) -> int:
    """Parse a size: 512M, 1.5G, 1073741824; K, M, G and T are powers of 1024."""
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(
            f"{value!r} is not a size: write bytes like 512M, 1.5G or 1073741824."
        )
    return int(float(match[1]) * 1024 ** _UNITS.index(match[2].upper()))
