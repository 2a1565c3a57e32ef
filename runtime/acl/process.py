"""Who started ACL in this process, and who may end it.

`acl.init` and `acl.finalize` belong to the process, not to an engine: two engines share one start,
and a start by another library (torch_npu) is never ours to end. CANN keeps this state in its
module, so we keep ours beside it: the one registry of the process, under a lock, an entry only
while an engine is open.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from .error_table import REPEAT_INITIALIZE, RT_PARAM_INVALID
from .errors import check
from .protocol import Acl

_INIT_HINT = "The configuration is bad JSON, or differs from that of the process's first init."


@dataclass
class _Start:
    acl: Acl  # held, so that its id stays its own
    users: int
    ours: bool


class Starts:
    """Counts the users of each ACL module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: dict[int, _Start] = {}

    def acquire(self, acl: Acl) -> None:
        """Start ACL for its first user. 100002 is success; other codes raise AclError."""
        with self._lock:
            start = self._starts.get(id(acl))
            if start is None:
                code = acl.init()
                if code == REPEAT_INITIALIZE:
                    acl.get_recent_err_msg()  # or it would explain some later failure
                else:
                    check(acl, "init", code, _INIT_HINT if code == RT_PARAM_INVALID else "")
                start = self._starts[id(acl)] = _Start(acl, 0, ours=code == 0)
            start.users += 1

    def release(self, acl: Acl) -> None:
        """End ACL after its last user, if we started it; raises AclError if that fails."""
        with self._lock:
            start = self._starts[id(acl)]
            start.users -= 1
            if start.users:
                return
            del self._starts[id(acl)]
            if start.ours:
                check(acl, "finalize", acl.finalize())


STARTS: Final = Starts()
