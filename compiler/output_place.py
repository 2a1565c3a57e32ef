"""The place that is written to: is there room, and what to say when the disk says no."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SPARE_BYTES = 4 << 20  # graph, tokenizer, manifest
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)
_REFUSED = (*_NOT_THERE, errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)


class OutputError(ValueError):
    """The output cannot be written; says where, why and what to do."""


def require_space(folder: Path, output: Path, nbytes: int) -> None:
    """Raise OutputError where `nbytes` of weights and the files beside them do not fit."""
    needed, free = nbytes + _SPARE_BYTES, shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"{output} needs {needed >> 20} MiB and {free >> 20} MiB are free there: free space, "
            "or name another --output"
        )


@contextmanager
def explaining(output: Path) -> Iterator[None]:
    """Turn the file system's refusals into an OutputError that names the output."""
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        if error.errno is None or not (full or _is_about(error, output)):
            raise
        advice = "choose an --output in a folder that exists or can be made, and can be written to"
        if full:
            advice = "free space there, raise the limit on file sizes, or choose another --output"
        raise OutputError(
            f"{output} cannot be written ({os.strerror(error.errno)}): {advice}. "
            "Nothing was changed"
        ) from error


def _is_about(error: OSError, output: Path) -> bool:
    """Tell whether the file that was refused is the output, beside it, or a parent of it."""
    if error.errno not in _REFUSED or not error.filename:
        return False
    place = output.absolute()
    name = Path(os.fsdecode(error.filename)).absolute()
    beside = [p for p in (name, *name.parents) if p.parent == place.parent]
    return name in place.parents or any(p.name.startswith(place.name) for p in beside)
