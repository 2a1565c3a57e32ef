"""Ctrl-C and SIGTERM during a compilation: noticed once, never lost, clean-up undisturbed.

Python raises KeyboardInterrupt wherever the main thread is. If that is inside a callback of a C
library it is printed and dropped, and some libraries wrap it into an error of their own. So the
handler also remembers the signal: `check()` between stages raises what was dropped, and whoever
catches an error asks `signal` first.
"""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any

_IMPATIENCE_SECONDS = 2.0  # a second Ctrl-C within this time must not break the clean-up


class Interruption:
    """A context: `signal` is the number of the signal that came, 0 while none has."""

    def __init__(self) -> None:
        self.signal = 0
        self._when = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before not in (None, signal.SIG_IGN):  # ignored by the parent: stays ignored
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def ignore_more(self) -> None:
        """Let no further signal break what is left to do: a message and the end of the process."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        self._before.clear()

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal came."""
        if self.signal:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        repeated = self.signal and now - self._when < _IMPATIENCE_SECONDS
        if not repeated:
            self.signal, self._when = number, now
            raise KeyboardInterrupt
