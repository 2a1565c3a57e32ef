"""Running a child process: lines as they come, a full log, a time limit, nobody left behind.

The child gets a session of its own, so that it and all its compile processes are one group which
can be ended together: on Ctrl-C, at the time limit, and when it exits and leaves workers running.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .atc_jobs import oom_kills, read_memory

OnLine = Callable[[str], None]
KEPT_LINES = 20000
_GRACE_S = 5.0  # between asking the group to end and killing it
_DRAIN_S = 1.0  # for output that is still in the pipe after the exit
_SAMPLE_S = 1.0  # between two looks at the free memory
_POLL_S = 0.1


@dataclass(frozen=True)
class ProcessOutcome:
    """How a child ended, its last lines, and the memory seen meanwhile."""

    returncode: int
    timed_out: bool
    lines: tuple[str, ...]
    seconds: float
    least_available_bytes: int | None
    oom_kills: int


def run_logged(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    on_line: OnLine | None = None,
    timeout_s: float | None = None,
) -> ProcessOutcome:
    """Run a command to its end; stdout and stderr go to `log` and line by line to `on_line`.

    Raises OSError if it cannot be started; whatever ends this function, KeyboardInterrupt and an
    exception of `on_line` included, ends the child's whole group first.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    kills_before = oom_kills()
    start = time.monotonic()
    with open(log, "wb") as file:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        watch = _Watch(child)
        reader = threading.Thread(target=watch.read, args=(file,), daemon=True)
        reader.start()
        try:
            timed_out = watch.follow(None if timeout_s is None else start + timeout_s, on_line)
            if not timed_out:
                reader.join(_DRAIN_S)  # workers left behind may hold the pipe open
                watch.drain(on_line)
        finally:
            end_group(child)
            reader.join(_DRAIN_S)
            watch.drain(None)  # without calling back: the caller may be on its way out
    kills_after = oom_kills()
    kills = 0 if kills_before is None or kills_after is None else kills_after - kills_before
    return ProcessOutcome(
        returncode=child.returncode,
        timed_out=timed_out,
        lines=tuple(watch.lines),
        seconds=time.monotonic() - start,
        least_available_bytes=watch.least_available_bytes,
        oom_kills=max(kills, 0),
    )


class _Watch:
    """Follows a child: one thread reads, the calling thread delivers lines and keeps time."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.least_available_bytes: int | None = None
        self._queue: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read(self, file: IO[bytes]) -> None:
        """Copy the output to the log and cut it into lines; a bare CR ends a line too."""
        stream = self.child.stdout
        if stream is None:
            return
        rest = b""
        with stream:
            while chunk := os.read(stream.fileno(), 65536):
                with suppress(ValueError):  # the log is closed: the caller has gone already
                    file.write(chunk)
                    file.flush()
                *complete, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                for line in complete:
                    self._queue.put(line.decode("utf-8", errors="replace"))
        if rest:
            self._queue.put(rest.decode("utf-8", errors="replace"))

    def follow(self, deadline: float | None, on_line: OnLine | None) -> bool:
        """Deliver lines until the child exits; returns whether the time limit ended it."""
        next_sample = 0.0
        while self.child.poll() is None:
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                return True
            if now >= next_sample:
                self._sample_memory()
                next_sample = now + _SAMPLE_S
            with suppress(queue.Empty):
                self._deliver(self._queue.get(timeout=_POLL_S), on_line)
        return False

    def drain(self, on_line: OnLine | None) -> None:
        """Deliver the lines that have been read but not delivered."""
        while not self._queue.empty():
            self._deliver(self._queue.get(), on_line)

    def _deliver(self, line: str, on_line: OnLine | None) -> None:
        self.lines.append(line)
        if on_line is not None:
            on_line(line)

    def _sample_memory(self) -> None:
        memory = read_memory()
        if memory is not None:
            least = self.least_available_bytes
            seen = memory.available_bytes
            self.least_available_bytes = seen if least is None else min(least, seen)


def end_group(child: subprocess.Popen[bytes]) -> None:
    """End a child's whole group: ask first, kill what is left after a grace period."""
    try:
        _signal_group(child, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
    finally:  # a second Ctrl-C while waiting included
        _signal_group(child, signal.SIGKILL)
        child.wait()


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    # Its group has the child's own id; a group without members is gone, which is what we want.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)
