"""Names of targets: what is accepted, what is suggested, and asking the machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pagedom.compiler.target_resolve import (
    Card,
    Probe,
    TargetError,
    parse_board,
    parse_npu_smi,
    resolve_target,
)

LISTING = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 23.0.1                   Version: 23.0.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| {npu:<5} {name:<19} | OK            | 93.6        40                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3161 / 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 4                                                            |
| 4       0                 | 1712733       | python                   | 48954                   |
+---------------------------+---------------+----------------------------------------------------+
"""
BOARD = """\
        NPU ID                         : 2
        Chip Name                      : Ascend910
        Chip Type                      : Ascend
        Chip Version                   : V1
        NPU Name                       : 9392
"""


def machine(soc: str | None = None, listing: str | None = None, board: str | None = None) -> Probe:
    def run(command: Sequence[str]) -> str | None:
        return board if "board" in command else listing

    return Probe(lambda: soc, run)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Ascend910B3", "Ascend910B3"),
        ("ascend910b3", "Ascend910B3"),
        ("910B2C", "Ascend910B2C"),
        (" 310p3 ", "Ascend310P3"),
        ("HOST", "host"),
        ("Ascend910_9391", "Ascend910_9391"),
        ("Ascend950pr_9579", "Ascend950PR_9579"),
        ("950dt_12ab", "Ascend950DT_12ab"),
    ],
)
def test_names(given: str, name: str) -> None:
    assert resolve_target(given).name == name


@pytest.mark.parametrize(
    ("given", "suggestion"),
    [
        ("Ascend910B5", "Ascend910B4"),
        ("Ascend910B33", "Ascend910B3"),
        ("Ascend310", "Ascend310P1"),
        ("hots", "host"),
        ("Ascend950", "Ascend950PR_xxxx"),
        ("Ascend910B", "Ascend910B1"),
    ],
)
def test_did_you_mean(given: str, suggestion: str) -> None:
    with pytest.raises(TargetError, match="Did you mean") as caught:
        resolve_target(given)
    assert suggestion in str(caught.value).split("Did you mean")[1].split("?")[0]
    assert repr(given) in str(caught.value)


def test_910b_without_a_digit_is_an_older_chip() -> None:
    with pytest.raises(TargetError, match="older 910"):
        resolve_target("Ascend910B")


def test_auto_believes_acl_first() -> None:
    probe = machine(soc="Ascend310P3", listing=LISTING.format(npu=4, name="910B3"))
    assert resolve_target("auto", probe).name == "Ascend310P3"


@pytest.mark.parametrize(
    ("column", "name"),
    [("910B3", "Ascend910B3"), ("310P3", "Ascend310P3"), ("310B4", "Ascend310B4")],
)
def test_auto_reads_npu_smi(column: str, name: str) -> None:
    probe = machine(listing=LISTING.format(npu=4, name=column))
    assert resolve_target("auto", probe).name == name


def test_auto_asks_the_board_for_910_93() -> None:
    probe = machine(listing=LISTING.format(npu=2, name="Ascend910"), board=BOARD)
    assert resolve_target("auto", probe).name == "Ascend910_9392"


def test_auto_on_a_950() -> None:
    board = BOARD.replace("Ascend910", "Ascend950PR").replace("9392", "9579")
    probe = machine(listing=LISTING.format(npu=0, name="Ascend950PR"), board=board)
    assert resolve_target("auto", probe).name == "Ascend950PR_9579"


@pytest.mark.parametrize(
    ("probe", "words"),
    [
        (machine(), "--target host"),
        (machine(listing="npu-smi: nothing\n"), "lists no card"),
        (machine(soc="Ascend910A"), "Ascend910A"),
        (machine(listing=LISTING.format(npu=0, name="710X")), "710X"),
        (machine(listing=LISTING.format(npu=0, name="Ascend910"), board=""), "'Ascend910'"),
    ],
)
def test_auto_says_what_to_do(probe: Probe, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        resolve_target("auto", probe)


def test_auto_refuses_a_mixed_machine() -> None:
    listing = LISTING.format(npu=0, name="910B3") + LISTING.format(npu=1, name="310P3")
    with pytest.raises(TargetError, match=r"different cards \(Ascend310P3, Ascend910B3\)"):
        resolve_target("auto", machine(listing=listing))


def test_parsers() -> None:
    assert parse_npu_smi(LISTING.format(npu=4, name="910B2C")) == [Card(4, "910B2C")]
    assert parse_npu_smi("") == []
    assert parse_board(BOARD) == ("Ascend910", "9392")
    assert parse_board("no board") == ("", "")
