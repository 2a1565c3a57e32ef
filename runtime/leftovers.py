"""Folders beside an output that a process made for itself, and what a killed one left of them.

    NAME.tmp-PID-xxxxxxxx    being built, locked by its builder; SIGKILL and power cuts leave it
    NAME.old-PID-xxxxxxxx    what was at NAME, locked too, while the new folder takes its place

A leftover is removed only if it is a folder of this user with such a name, no process has its PID,
and nobody holds its lock. So what a process in another container builds is left alone as well, and
where the file system knows no locks nothing is removed.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: nothing is locked, so nothing is removed
    fcntl = None  # type: ignore[assignment]

LOG = logging.getLogger(__name__)

BUILDING, ASIDE = "tmp", "old"


def own_name(output: Path, kind: str) -> Path:
    """Return a fresh name beside `output` for a folder of this process; kind BUILDING or ASIDE."""
    return output.with_name(f"{output.name}.{kind}-{os.getpid()}-{secrets.token_hex(4)}")


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold a folder's lock; False where somebody else has it or it cannot be had."""
    if fcntl is None:
        yield False
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            got = True
        except OSError:
            got = False
        yield got
    finally:
        os.close(handle)  # lets go of the lock


def clear_leftovers(output: Path) -> None:
    """Remove what killed processes left beside `output`, and say so in the log.

    If one of them died while it swapped, so that nothing is at `output`, what was there comes back.
    """
    for kind in (ASIDE, BUILDING):
        for folder, pid in _leftovers(output, kind):
            with locked(folder) as got:
                if got:
                    _clear(folder, output, kind, pid)


def _clear(folder: Path, output: Path, kind: str, pid: int) -> None:
    whose = f"process {pid}, which was killed while it wrote {output.name}"
    try:
        if kind == ASIDE and not output.exists():
            folder.rename(output)
            LOG.warning("brought %s back from %s: left by %s", output, folder.name, whose)
            return
        shutil.rmtree(folder)
        LOG.warning("removed %s: left by %s", folder, whose)
    except OSError as error:
        LOG.warning("%s is left by %s, and cannot be removed: %s", folder, whose, error)


def _leftovers(output: Path, kind: str) -> Iterator[tuple[Path, int]]:
    pattern = re.compile(re.escape(f"{output.name}.{kind}-") + r"([0-9]{1,10})-[0-9a-f]{8}")
    try:
        beside = sorted(output.parent.iterdir())
    except OSError:
        return
    for path in beside:
        found = pattern.fullmatch(path.name)
        if found and _is_ours(path) and not _is_alive(int(found[1])):
            yield path, int(found[1])


def _is_ours(path: Path) -> bool:
    try:
        return path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    """Tell whether a process has this PID; this one holds the locks of what it builds itself."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it is somebody else's, or no PID at all
        return True
    return True
