"""What all parts of the host device share: options, handles, thread-bound state, messages."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

from ..visible_devices import visible_cards
from .error_table import INVALID_PARAM
from .faults import FaultCounter
from .ledger import Ledger, call_site
from .options import AclOptions

if TYPE_CHECKING:
    from .host_context import Context

_FIRST_HANDLE = 0x7F00_0000_1000  # looks like a pointer; never equals a small index by accident
_HANDLE_STEP = 16
_MAX_MESSAGES = 8


class ThreadState(threading.local):
    """What ACL binds to a thread: the current context and the recent error messages."""

    context: Context | None = None
    messages: tuple[str, ...] = ()


class HostCore:
    """Shared state of one emulated process; all parts of a HostAcl hold the same one."""

    def __init__(self, options: AclOptions) -> None:
        self.options = options
        self.checked = options.checked
        self.ledger = Ledger(options.checked)
        self.faults = FaultCounter(options.faults)
        self.thread = ThreadState()
        self.initialised = options.already_initialised
        self.finalised = False
        self.calls_without_context: list[str] = []
        self.read_environment()
        self._handles = itertools.count(_FIRST_HANDLE, _HANDLE_STEP)

    def read_environment(self) -> None:
        """Look which cards the process sees; CANN does so when ACL starts, and not again."""
        self.cards = visible_cards(self.options.num_devices)

    def new_handle(self) -> int:
        """Return a number that was never a handle before."""
        return next(self._handles)

    def fail(self, code: int, text: str) -> int:
        """Store the message for this thread's get_recent_err_msg and return the code."""
        self.thread.messages = (*self.thread.messages[-_MAX_MESSAGES + 1 :], text)
        return code

    def misuse(self, code: int, text: str) -> int:
        """Fail for wrong use; in checked mode the message names the calling place too."""
        if self.checked:
            text = f"AclUsageError: {text} (at {call_site()})"
            self.ledger.usage_errors.append(text)
        return self.fail(code, text)

    def bad_handle(self, kind: str, handle: int, code: int = INVALID_PARAM) -> int:
        """Fail for a handle that names nothing live."""
        return self.misuse(code, f"not a live {kind}: {self.ledger.describe(kind, handle)}")

    def take_message(self) -> str | None:
        """Return this thread's messages and forget them; None when there are none."""
        messages = self.thread.messages
        if not messages:
            return None
        self.thread.messages = ()
        return "\n".join(messages)
