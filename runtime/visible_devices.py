"""ASCEND_RT_VISIBLE_DEVICES: which cards a process sees, and under which numbers.

    ASCEND_RT_VISIBLE_DEVICES=4,6      device id 0 is card 4, device id 1 is card 6, that is all

CANN reads the list when ACL starts, by these rules (its documentation of the variable, and
`Runtime::GetVisibleDevices` of its runtime):

* numbers and single commas; at any other character, a space too, and at a second comma it stops
  reading and keeps what it has;
* it stops as well at the first card that the machine does not have;
* cards must ascend, none twice: else, or if nothing was read, no card is visible (EE2002; 207004
  from get_device_count, 107001 from set_device).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
HOW_TO_LIST = "list card numbers in ascending order, with commas and no spaces, such as 0,1"
_READ = re.compile(r"[0-9]+(,[0-9]+)*,?")


@dataclass(frozen=True)
class CardList:
    """The list as CANN reads it: device id i is `cards[i]`.

    error: why no card is visible at all, "" if there is none. unread: the text behind what is read.
    """

    cards: tuple[int, ...] = ()
    error: str = ""
    unread: str = ""


def read_card_list(value: str, num_cards: int | None = None) -> CardList:
    """Read a value of the variable on a machine with `num_cards` cards, None = not known."""
    found = _READ.match(value)
    if found is None:
        return CardList(error="is empty" if not value else "does not begin with a card number")
    unread = value[found.end() :]
    cards: list[int] = []
    for text in found[0].rstrip(",").split(","):
        card = int(text)
        if num_cards is not None and card >= num_cards:
            break
        if card in cards:
            return CardList(error=f"names card {card} twice")
        if cards and card < cards[-1]:
            return CardList(error=f"names card {card} behind card {cards[-1]}")
        cards.append(card)
    if not cards:
        return CardList(error=f"begins with a card that is not there: {num_cards} in all")
    return CardList(tuple(cards), unread=unread)


def visible_cards(num_cards: int | None, environment: Mapping[str, str] = os.environ) -> CardList:
    """Return the cards that a process sees of `num_cards`.

    None: of a machine with all the cards that the variable names, and one without it.
    """
    value = environment.get(VARIABLE)
    if value is None:
        return CardList(tuple(range(num_cards or 1)))
    return read_card_list(value, num_cards)


def explain_device(device_id: int, count: int, environment: Mapping[str, str] = os.environ) -> str:
    """Return what to do when `device_id` cannot be opened; names id, count and the variable."""
    value = environment.get(VARIABLE)
    known = f"Device id {device_id}; devices here: {count}; {VARIABLE}"
    if value is None:
        return f"{known} is not set. {_allowed(count)}"
    listed = read_card_list(value)
    if listed.error:
        return f"{known}={value!r} {listed.error}: {HOW_TO_LIST}."
    if count < 1:
        return f"{known}={value!r}, but no such card is there. {_allowed(count)}"
    cards = listed.cards[:count]  # what is not there ends the list
    numbers = ", ".join(f"{place} is card {card}" for place, card in enumerate(cards))
    unread = f" {listed.unread!r} at its end is not read: {HOW_TO_LIST}." if listed.unread else ""
    return f"{known}={value!r} renumbers the cards from 0: {numbers}.{unread} {_allowed(count)}"


def _allowed(count: int) -> str:
    if count < 1:
        return "No device is visible: look at npu-smi info, and in a container at /dev/davinci*."
    return "Use device_id 0." if count == 1 else f"Use a device_id from 0 to {count - 1}."
