"""Choosing CANN's `acl` module or the host device, with clear words when CANN's cannot load."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Literal, cast

from .errors import AclUnavailableError
from .host import HostAcl
from .options import AclOptions
from .protocol import Acl

Kind = Literal["auto", "host", "cann"]
KINDS = ("auto", "host", "cann")

_SOURCE = "source <cann>/set_env.sh in this very process"
# Part of the loader's message -> what to do.
_IMPORT_ADVICE = (
    (
        "No module named",
        f"{_SOURCE}; PYTHONPATH must hold <cann>/python/site-packages, and this python must be "
        "the one CANN was installed for",
    ),
    (
        "static TLS block",
        "import acl before other libraries, or LD_PRELOAD the libgomp that the message names",
    ),
    (
        "undefined symbol",
        "two CANN versions are mixed on the library path; keep one",
    ),
    (
        "cannot open shared object file",
        "LD_LIBRARY_PATH lacks CANN or the driver in this process (a service, sudo or a container "
        f"does not inherit the shell's): {_SOURCE}; the driver's libraries are below "
        "/usr/local/Ascend/driver/lib64",
    ),
)
_SHOWN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "LD_LIBRARY_PATH")


def open_acl(kind: Kind = "auto", options: AclOptions | None = None) -> Acl:
    """Return CANN's module `acl` or a host device that speaks the same language.

    "auto" takes CANN's if it is installed: one that is there but broken is an error, not a reason
    to be a thousand times slower in silence. Raises AclUnavailableError, ValueError for an unknown
    kind. CANN's module ignores the options.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown ACL kind {kind!r}: known are {', '.join(KINDS)}")
    if kind == "host" or (kind == "auto" and importlib.util.find_spec("acl") is None):
        return HostAcl(options)
    try:
        return cast(Acl, importlib.import_module("acl"))
    except (ImportError, OSError) as error:
        raise AclUnavailableError(_explain(str(error))) from error


def import_advice(message: str) -> str:
    """Return what to do about a message with which `import acl` failed."""
    return next(
        (text for signature, text in _IMPORT_ADVICE if signature in message),
        f"{_SOURCE} and try `python -c 'import acl'`",
    )


def _explain(message: str) -> str:
    advice = import_advice(message)
    shown = ", ".join(f"{name}={os.environ.get(name, '(unset)')}" for name in _SHOWN_VARIABLES)
    return (
        f"CANN's python module `acl` cannot be loaded: {message}\n"
        f"  What to do: {advice}.\n"
        f"  Environment: {shown}\n"
        "  To run on this machine's CPU instead, compile the model for it: --target host."
    )
