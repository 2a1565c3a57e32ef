"""Devices and contexts of the host device: the current context is bound to the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..visible_devices import VARIABLE
from .error_table import (
    INVALID_PARAM,
    RT_CONTEXT_NULL,
    RT_INVALID_DEVICE,
    RT_NO_DEVICE,
    RT_PARAM_INVALID,
    UNINITIALIZE,
)
from .host_core import HostCore

KIND = "context"


class Context:
    """One context. `is_default`: made by set_device and shared by all threads that call it."""

    def __init__(self, handle: int, device_id: int, is_default: bool) -> None:
        self.handle = handle
        self.device_id = device_id
        self.is_default = is_default
        self.alive = True


class Contexts:
    """pyACL's device and context calls.

    set_device is counted for the process: the last reset_device of a device destroys its default
    context. A context that is destroyed is no thread's current one any more.
    """

    def __init__(self, core: HostCore) -> None:
        self._core = core
        self._contexts: dict[int, Context] = {}
        self._defaults: dict[int, Context] = {}
        self._uses: dict[int, int] = {}
        self._lock = threading.Lock()
        self.on_destroy: list[Callable[[Context], None]] = []  # streams go with their context

    def current(self) -> Context | None:
        """The calling thread's current context, or None."""
        context = self._core.thread.context
        return context if context is not None and context.alive else None

    def missing(self, call: str) -> int:
        """Fail with 107002 for a call on a thread without a context."""
        thread = threading.current_thread().name
        self._core.calls_without_context.append(f"{call} on thread {thread!r}")
        return self._core.fail(
            RT_CONTEXT_NULL, f"EE1004: {call}: thread {thread!r} has no current context"
        )

    def set_device(self, device_id: int, /) -> int:
        """Count one more use of a device and make its default context current."""
        code = self._check_device("rt.set_device", device_id)
        if code:
            return code
        with self._lock:
            self._uses[device_id] = self._uses.get(device_id, 0) + 1
            context = self._defaults.get(device_id)
            if context is None:
                context = self._new(device_id, is_default=True)
                self._defaults[device_id] = context
        self._core.thread.context = context
        return 0

    def reset_device(self, device_id: int, /) -> int:
        """Count one use less; the last one destroys the default context and its streams."""
        return self._reset("rt.reset_device", device_id, forced=False)

    def reset_device_force(self, device_id: int, /) -> int:
        """Destroy the default context whatever the count says."""
        return self._reset("rt.reset_device_force", device_id, forced=True)

    def get_device(self) -> tuple[int, int]:
        """Return (device id of the current context, ret)."""
        context = self.current()
        if context is None:
            return -1, self.missing("rt.get_device")
        return context.device_id, 0

    def get_device_count(self) -> tuple[int, int]:
        """Return (number of devices that the process sees, ret)."""
        cards = self._core.cards
        if cards.error:
            return 0, self._core.fail(
                RT_NO_DEVICE, f"EE2002: rt.get_device_count: {VARIABLE} {cards.error}"
            )
        return len(cards.cards), 0

    def create_context(self, device_id: int, /) -> tuple[int, int]:
        """Return (context, ret) and make it current on this thread."""
        code = self._check_device("rt.create_context", device_id)
        if code:
            return 0, code
        with self._lock:
            context = self._new(device_id, is_default=False)
        self._core.thread.context = context
        self._core.ledger.opened(KIND, context.handle)
        return context.handle, 0

    def get_context(self) -> tuple[int, int]:
        """Return (current context, ret)."""
        context = self.current()
        if context is None:
            return 0, self.missing("rt.get_context")
        return context.handle, 0

    def set_context(self, context: int, /) -> int:
        """Make a context current on this thread."""
        found = self._contexts.get(context)
        if found is None:
            return self._core.bad_handle(KIND, context, RT_PARAM_INVALID)
        self._core.thread.context = found
        return 0

    def destroy_context(self, context: int, /) -> int:
        """Destroy a private context and its streams; default ones go with reset_device."""
        found = self._contexts.get(context)
        if found is None:
            return self._core.bad_handle(KIND, context, RT_PARAM_INVALID)
        if found.is_default:
            return self._core.misuse(
                RT_PARAM_INVALID, "a default context is destroyed by rt.reset_device only"
            )
        self._destroy(found)
        self._core.ledger.closed(KIND, context)
        return 0

    def destroy_all(self) -> None:
        """Destroy whatever is left (finalize)."""
        for context in list(self._contexts.values()):
            self._destroy(context)
        self._defaults.clear()
        self._uses.clear()

    def _new(self, device_id: int, is_default: bool) -> Context:
        context = Context(self._core.new_handle(), device_id, is_default)
        self._contexts[context.handle] = context
        return context

    def _destroy(self, context: Context) -> None:
        for call in self.on_destroy:
            call(context)
        context.alive = False
        self._contexts.pop(context.handle, None)

    def _reset(self, call: str, device_id: int, forced: bool) -> int:
        code = self._check_device(call, device_id)
        if code:
            return code
        with self._lock:
            uses = self._uses.get(device_id, 0)
            if uses == 0:
                return self._core.misuse(
                    INVALID_PARAM, f"{call}({device_id}): the device is not set"
                )
            self._uses[device_id] = 0 if forced else uses - 1
            last = self._uses[device_id] == 0
            context = self._defaults.pop(device_id, None) if last else None
        if context is not None:
            self._destroy(context)
        return 0

    def _check_device(self, call: str, device_id: int) -> int:
        if not self._core.initialised:
            return self._core.fail(UNINITIALIZE, f"{call}: acl.init was not called")
        count = len(self._core.cards.cards)  # ids count the cards that are seen, from 0
        if not 0 <= device_id < count:
            return self._core.fail(
                RT_INVALID_DEVICE,
                f"EE1001: {call}: device id {device_id} is not in [0, {count})",
            )
        return 0
