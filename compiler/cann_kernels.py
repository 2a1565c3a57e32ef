"""Which operators an installed CANN has kernels of, for a family of chips.

    <root>/opp/built-in/op_impl/ai_core/tbe/config/<family>/aic-<family>-ops-info*.json
    <root>/opp/vendors/<vendor>/op_impl/ai_core/tbe/config/<family>/aic-<family>-ops-info*.json

Each file is an object with an operator a key; ATC finds kernels by them. A release may have several
(ops packages by subject), and from 8.5.0 on a chip without its ops package has none (facts:
ascend_ops 6). Looked at before any work, because ATC would say so after the export, in a log.
"""

from __future__ import annotations

import json
from pathlib import Path

from .attention_form import COMPOSED
from .cann_install import CannInstall
from .target_records import Family, Target
from .target_rules import writes_by_slot

_CONFIGS = "op_impl/ai_core/tbe/config"
# What an operator of ours becomes (graph_ops/ascend).
GE_OPERATORS = {"RmsNorm": "RmsNorm", "Rotary": "RotaryPositionEmbedding", "SwiGlu": "SwiGlu"}


class CannKernelsError(RuntimeError):
    """A toolkit lacks the kernels that a model for a chip is made of."""


def installed_kernels(cann: CannInstall, family: Family) -> frozenset[str] | None:
    """Return the operators with a kernel for a family; None where no file says any.

    Raises CannKernelsError where the toolkit has kernels for other chips only.
    """
    configs = [
        folder
        for place in (cann.opp / "built-in", *sorted((cann.opp / "vendors").glob("*")))
        for folder in sorted((place / _CONFIGS).glob("*"))
    ]
    found: set[str] = set()
    others: set[str] = set()
    for folder in configs:
        names = _operators(folder)
        if folder.name == family.op_config:
            found |= names
        elif names:
            others.add(folder.name)
    if found:
        return frozenset(found)
    if others:
        raise CannKernelsError(
            f"CANN {cann.version or 'of an unknown release'} at {cann.root} has no kernels for "
            f"{family.op_config}, only for {', '.join(sorted(others))}: install the ops package of "
            "the chip (from 8.5.0 on it is a package of its own), or name another toolkit with "
            "--cann"
        )
    return None


def lacking_operators(cann: CannInstall, target: Target, form: str) -> frozenset[str]:
    """Return the operators of ours that stay as function bodies because CANN has no kernel.

    Args:
        form: of attention; "composed" needs no operator of attention or cache.

    Raises:
        CannKernelsError: an operator without which there is no such form is missing.
    """
    installed = installed_kernels(cann, target.family)
    if installed is None:
        return frozenset()
    needed = set()
    attention = target.family.attention
    if form != COMPOSED and attention is not None:
        by_slot = writes_by_slot(target, cann.version or None)
        needed = {attention.op, "ScatterNdUpdate" if by_slot else "ScatterPaKvCache"}
    missing = sorted(needed - installed)
    if missing:
        raise CannKernelsError(
            f"CANN {cann.version or 'of an unknown release'} at {cann.root} has no kernel of "
            f"{' and '.join(missing)} for {target.name} (looked at {_CONFIGS}/"
            f"{target.family.op_config} below opp): install the ops package of the chip or another "
            "release, or compile with --cache-write rows, which does not use that"
        )
    return frozenset(ours for ours, ge in GE_OPERATORS.items() if ge not in installed)


def _operators(folder: Path) -> set[str]:
    """Return the operators of a configuration folder; a file that cannot be read names none."""
    names: set[str] = set()
    for path in sorted(folder.glob("aic-*-ops-info*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(data, dict):
            names |= data.keys()
    return names
