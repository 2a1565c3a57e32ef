"""Ctrl-C and SIGTERM: noticed once, never lost, clean-up undisturbed.

Python raises KeyboardInterrupt wherever the main thread is. If that is inside a callback of a C
library it is printed and dropped, and some libraries wrap it into an error of their own. So the
handler also remembers the signal: `check()` between stages raises what was dropped, and whoever
catches an error asks `signal` first.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

PATIENCE_SECONDS = 2.0  # a second Ctrl-C within this time must not break the clean-up
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A context: `signal` is the number of the last signal that came, 0 while none has.

    patience: seconds during which further signals are ignored after one.
    """

    def __init__(
        self,
        signals: tuple[signal.Signals, ...] = _SIGNALS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.signal = 0
        self._signals = signals
        self._patience = patience
        self._when = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
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

    def is_recent(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """Tell whether a signal came in the last `seconds`: an error now came of it."""
        return bool(self.signal) and time.monotonic() - self._when < seconds

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.is_recent(self._patience):
            self.signal, self._when = number, time.monotonic()
            raise KeyboardInterrupt


@contextmanager
def signals_held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of the block, where Python lets us (main thread)."""
    late: list[int] = []
    held = {}
    if threading.current_thread() is threading.main_thread():
        for each in _SIGNALS:
            before = signal.getsignal(each)
            if before is not None:  # None: not Python's own, and not to be touched
                held[each] = before
                signal.signal(each, lambda number, frame: late.append(number))
    try:
        yield
    finally:
        for each, before in held.items():
            signal.signal(each, before)
    for number in dict.fromkeys(late):
        signal.raise_signal(number)
