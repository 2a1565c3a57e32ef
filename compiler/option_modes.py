"""Which options each mode of `compile-model` reads: any other that was given is refused.

An option that changes nothing would be taken for one that does. --plan and --advise-pages take all
that the compilation itself takes, so that they can be added to its command line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from .option_error import OptionError

HOST, CHIP, ATC = "host", "chip", "atc"
HOST_ONNX, CHIP_ONNX = "onnx for host", "onnx for a chip"
PLAN, ADVISE, CAPABILITIES, PLUGIN, WEIGHTS, FROM_OM = (
    *("plan", "advise_pages", "capabilities", "build_plugin", "list_weights", "from_om"),
)
STOPPING = (PLAN, ADVISE, WEIGHTS, CAPABILITIES, PLUGIN, FROM_OM)  # options that stop there

_ARTEFACTS = (HOST, CHIP, ATC)
_CHIPS = (CHIP, ATC)
_COMPILING = (*_ARTEFACTS, HOST_ONNX, CHIP_ONNX)
_EVERYWHERE = (*_COMPILING, *STOPPING)

# What the commands are called in a message.
_WORDS = MappingProxyType(
    {
        HOST: "--target host",
        CHIP: "a chip as --target",
        ATC: "--emit atc",
        HOST_ONNX: "--emit onnx",
        CHIP_ONNX: "--emit onnx for a chip",
        **{name: "--" + name.replace("_", "-") for name in STOPPING},
    }
)
_LEAVE_OUT = "Leave it out"
_INSTEAD = MappingProxyType(
    {
        FROM_OM: "That was decided when the bundle was written. Leave it out, or write another "
        "bundle with --emit atc"
    }
)

# Parameter of the command -> modes in which it has an effect.
READERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "model": (*_COMPILING, PLAN, ADVISE, WEIGHTS, CAPABILITIES, FROM_OM),
        "output": (*_COMPILING, FROM_OM),
        "target": (*_COMPILING, CAPABILITIES, FROM_OM),
        "emit": _COMPILING,
        "dtype": _COMPILING,
        "page_size": _COMPILING,
        "max_seq_len": _COMPILING,
        "max_batch": _ARTEFACTS,
        "gears": _ARTEFACTS,
        "traffic": _CHIPS,
        "max_batch_tokens": _CHIPS,
        "max_gears": _CHIPS,
        "gear_budget": _CHIPS,
        "input_shape_range": _CHIPS,
        "num_pages": _ARTEFACTS,
        "cache_write": _ARTEFACTS,
        "memory": (*_CHIPS, PLAN),
        "cann": (*_CHIPS, PLUGIN),
        "compile_jobs": (CHIP,),
        "timeout": (CHIP,),
        "external_weight": _CHIPS,
        "log": _CHIPS,
        "executor": (HOST, HOST_ONNX),
        "reference": (HOST, CHIP),
        "mean_length": (PLAN,),
        "lengths": (ADVISE,),
        "as_json": _EVERYWHERE,
        "debug": _EVERYWHERE,
        **{name: (name,) for name in STOPPING},
    }
)


def compiling_mode(target: str | None, emit: str) -> str:
    """Return the mode of a compilation; raises OptionError for --emit atc without a chip.

    `target` is what was typed; "auto" finds a chip or fails.
    """
    is_host = (target or HOST).strip().lower() == HOST
    if emit == "onnx":
        return HOST_ONNX if is_host else CHIP_ONNX
    if emit == "atc":
        if is_host:
            raise OptionError(
                "--emit atc is for chips only, and the target is host. Name a chip with --target, "
                "such as Ascend910B3"
            )
        return ATC
    return HOST if is_host else CHIP


def refuse_unread(given: Iterable[str], modes: Collection[str]) -> None:
    """Raise OptionError for options that none of the active modes reads; `given`: their names."""
    late = [name for name in given if not set(READERS[name]) & set(modes)]
    if not late:
        return
    mode = next((name for name in STOPPING if name in modes), next(iter(modes)))
    told = [f"{_flag(name)} is read with {_readers(name)}." for name in late]
    if mode in _INSTEAD:
        told = []
    raise OptionError(
        " ".join(
            [
                f"{', '.join(_flag(name) for name in late)} with {_WORDS[mode]}: has no effect.",
                *told,
                _INSTEAD.get(mode, _LEAVE_OUT),
            ]
        )
    )


def _flag(name: str) -> str:
    if name == "model":
        return "MODEL"
    return "--json" if name == "as_json" else "--" + name.replace("_", "-")


def _readers(name: str) -> str:
    words = [_WORDS[mode] for mode in READERS[name]]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
