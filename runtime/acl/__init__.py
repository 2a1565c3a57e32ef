"""pyACL: the real module on an Ascend machine, its emulation elsewhere."""

from .errors import AclError, AclUnavailableError, check
from .executor import Executor, ExecutorError, ExecutorOptions
from .faults import FaultPlan
from .host import HostAcl
from .opening import open_acl
from .options import AclOptions
from .protocol import Acl

__all__ = [
    "Acl",
    "AclError",
    "AclOptions",
    "AclUnavailableError",
    "Executor",
    "ExecutorError",
    "ExecutorOptions",
    "FaultPlan",
    "HostAcl",
    "check",
    "open_acl",
]
