"""What `npu-smi` prints, read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Card:
    """One line of `npu-smi info`: the card's number, its Name column and its Health column."""

    npu_id: int
    name: str
    health: str = field(default="", compare=False)


# `| 0     910B3               | OK            | 93.6 ...`; the second line of a card holds a bus id
# in the middle column and is not matched, nor is the table of processes.
_CARD = re.compile(r"^\|\s*(\d+)\s+([\w.-]*[A-Za-z][\w.-]*)\s*\|\s*([A-Za-z]+)\s*\|")


def parse_npu_smi(listing: str) -> list[Card]:
    """Return the cards in the text of `npu-smi info`, in its order."""
    found = (_CARD.match(line.strip()) for line in listing.splitlines())
    return [Card(int(match[1]), match[2], match[3]) for match in found if match]


def parse_board(text: str) -> tuple[str, str]:
    """Return (Chip Name, NPU Name) from `npu-smi info -t board`, "" where a line is absent."""
    fields = dict(re.findall(r"^\s*([A-Za-z ]+?)\s*:\s*(\S+)\s*$", text, re.MULTILINE))
    return fields.get("Chip Name", ""), fields.get("NPU Name", "")
