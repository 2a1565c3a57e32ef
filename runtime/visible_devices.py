"""ASCEND_RT_VISIBLE_DEVICES: which cards a process sees, and under which numbers.

    ASCEND_RT_VISIBLE_DEVICES=4,6      device id 0 is card 4, device id 1 is card 6, that is all

Rules follow CANN's FAQ (107001, EE1001, EE2002): ids are renumbered from 0, and an entry that is
invalid or occurs twice is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"


def explain_device(device_id: int, count: int, environment: Mapping[str, str] = os.environ) -> str:
    """Return what to do when `device_id` cannot be opened; names id, count and the variable."""
    value = environment.get(VARIABLE)
    known = f"Device id {device_id}; devices here: {count}; {VARIABLE}"
    if value is None:
        return f"{known} is not set. {_allowed(count)}"
    problem = _problem(value)
    if problem:
        return f"{known}={value!r} {problem}: list card numbers, each once, such as 0,1."
    cards = [each.strip() for each in value.split(",")]
    numbers = ", ".join(f"{place} is card {card}" for place, card in enumerate(cards))
    return f"{known}={value!r} renumbers the cards from 0: {numbers}. {_allowed(count)}"


def _allowed(count: int) -> str:
    if count < 1:
        return "No device is visible: look at npu-smi info, and in a container at /dev/davinci*."
    return "Use device_id 0." if count == 1 else f"Use a device_id from 0 to {count - 1}."


def _problem(value: str) -> str:
    entries = [each.strip() for each in value.split(",")]
    bad = [each for each in entries if not each.isdecimal()]
    if bad:
        return f"has the invalid entry {bad[0]!r}" if value.strip() else "is empty"
    double = sorted({each for each in entries if entries.count(each) > 1})
    return f"names card {double[0]} twice" if double else ""
