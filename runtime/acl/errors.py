"""From an ACL return code to an exception that says what happened and what to do."""

from __future__ import annotations

import threading
from typing import Protocol

from .error_table import DETAIL_HINTS, DEVICE_LOST, RT_CONTEXT_NULL, row


class AclUnavailableError(RuntimeError):
    """CANN's `acl` module was asked for and cannot be used; the text says how to repair that."""


class AclError(RuntimeError):
    """An ACL call returned a code other than 0.

    Attributes: `call` such as "rt.malloc", `code`, `meaning`, `hint` (may be ""), `detail` (what
    `acl.get_recent_err_msg` said on the failing thread, may be ""), `device_lost`: nothing can be
    computed on the device any more.
    """

    def __init__(self, call: str, code: int, detail: str = "", hint: str = "") -> None:
        known = row(code)
        self.call = call
        self.code = code
        self.device_lost = code in DEVICE_LOST
        self.meaning = known.meaning
        self.detail = detail.strip()
        self.hint = hint or _hint_of_detail(self.detail) or known.hint
        parts = [f"acl.{call} returned {code} ({self.meaning})"]
        if code == RT_CONTEXT_NULL:
            parts[0] += f" on thread {threading.current_thread().name!r}"
        if self.detail:
            parts.append(f"Detail: {self.detail}")
        if self.hint:
            parts.append(f"What to do: {self.hint}")
        super().__init__("\n  ".join(parts))


class MessageSource(Protocol):
    """The part of pyACL that explains the last failure of the calling thread."""

    def get_recent_err_msg(self) -> str | None:
        """Return and clear the message; None when there is none."""


def check(acl: MessageSource, call: str, code: int, hint: str = "") -> None:
    """Raise AclError unless code is 0; call it right after the failing call on its thread."""
    if code != 0:
        raise AclError(call, code, acl.get_recent_err_msg() or "", hint)


def _hint_of_detail(detail: str) -> str:
    for signature, advice in DETAIL_HINTS:
        if signature in detail:
            return advice
    return ""
