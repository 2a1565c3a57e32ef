"""From what the user typed (`Ascend910B3`, `310p3`, `host`, `auto`) to a target record.

`auto` asks the device: ACL's `acl.get_soc_name()` where CANN's Python module can be imported,
otherwise `npu-smi info`. Names are as ATC's --soc_version wants them: "Ascend" + Name of npu-smi
on 910B, 310P and 310B; Chip Name + "_" + NPU Name of `npu-smi info -t board` on 910_93 and 950.
"""

from __future__ import annotations

import difflib
import importlib
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..runtime.npu_smi import Card, parse_board, parse_npu_smi
from .target_records import Target
from .targets import TARGETS, match_950, target_names

_HOW_TO_NAME = "Name it, for example --target Ascend910B3, or use --target host to run on the CPU."
_OLD_910 = ("910", "910a", "910b", "910proa", "910prob", "910premiuma")


class TargetError(ValueError):
    """The target cannot be resolved; the text says what to type."""


@dataclass(frozen=True)
class Probe:
    """How to ask the machine; tests give their own."""

    acl_soc_name: Callable[[], str | None]
    run: Callable[[Sequence[str]], str | None]  # stdout, None when the command fails


def resolve_target(name: str, probe: Probe | None = None) -> Target:
    """Return the record for a `--target` value.

    Case and a missing "Ascend" do not matter. Raises TargetError with near names for an unknown
    one, and for `auto` when the machine shows no card or cards of several kinds.
    """
    wanted = name.strip()
    if wanted.lower() == "auto":
        return _detect(probe or Probe(_acl_soc_name, _run))
    found = _lookup(wanted)
    if found is None:
        raise TargetError(_unknown(wanted))
    return found


def _lookup(name: str) -> Target | None:
    by_key = {row.lower(): target for row, target in TARGETS.items()}
    for key in (name.lower(), "ascend" + name.lower()):
        if key in by_key:
            return by_key[key]
        late = match_950(key)
        if late is not None:
            return late
    return None


def _unknown(name: str) -> str:
    key, names = name.lower(), target_names()
    if key.removeprefix("ascend") in _OLD_910:
        wanted = [row for row in names if row.startswith("Ascend910B")]
        return (
            f"unknown target {name!r}: it names an older 910 with other operators (its "
            "Short_SoC_version in CANN is Ascend910), not an A2 card. Did you mean one of "
            f"{', '.join(wanted)}?"
        )
    near = _near(key.removeprefix("ascend"), names)
    hint = f"Did you mean {', '.join(near)}? " if near else ""
    return f"unknown target {name!r}. {hint}Known: {', '.join(names)}, auto."


def _near(key: str, names: Sequence[str]) -> list[str]:
    """Names that begin with `key`, otherwise up to three that look like it; "Ascend" is ignored."""
    short = {row.lower().removeprefix("ascend"): row for row in names}
    starts = [row for brief, row in short.items() if key and brief.startswith(key)]
    close = difflib.get_close_matches(key, short, n=3, cutoff=0.6)
    return starts or [short[brief] for brief in close]


def _detect(probe: Probe) -> Target:
    soc = probe.acl_soc_name()
    if soc:
        found = _lookup(soc)
        if found is None:
            raise TargetError(f"acl.get_soc_name() says {soc!r}: {_unknown(soc)}")
        return found
    listing = probe.run(["npu-smi", "info"])
    if listing is None:
        raise TargetError(
            "--target auto found no card: the module acl cannot be imported (is set_env.sh of "
            "CANN sourced?) and `npu-smi info` did not run. " + _HOW_TO_NAME
        )
    names = sorted({_full_name(card, probe) for card in parse_npu_smi(listing)})
    if not names:
        raise TargetError("--target auto: `npu-smi info` lists no card. " + _HOW_TO_NAME)
    if len(names) > 1:
        raise TargetError(
            f"--target auto: `npu-smi info` lists different cards ({', '.join(names)}). "
            "Name the one to compile for with --target."
        )
    found = _lookup(names[0])
    if found is None:
        raise TargetError(f"`npu-smi info` says {names[0]!r}: {_unknown(names[0])}")
    return found


def _full_name(card: Card, probe: Probe) -> str:
    name = card.name if card.name.lower().startswith("ascend") else "Ascend" + card.name
    if _lookup(name) is not None:
        return name
    # 910_93 and 950 cards show the chip's name only: the NPU name is in the board information.
    board = probe.run(["npu-smi", "info", "-t", "board", "-i", str(card.npu_id), "-c", "0"])
    chip, npu = parse_board(board or "")
    if not chip or not npu or npu == "NA":
        return name
    chip = chip if chip.lower().startswith("ascend") else "Ascend" + chip
    return f"{chip}_{npu}"


def _acl_soc_name() -> str | None:
    try:
        acl = importlib.import_module("acl")
        name = acl.get_soc_name()
    except (ImportError, OSError, AttributeError):
        return None
    return str(name) if name else None


def _run(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
