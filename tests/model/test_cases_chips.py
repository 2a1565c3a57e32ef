"""Field cases 7 and 9 as they are written, through the command; their parts are tested below."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ascend_machine import AscendMachine, prepare

from pagedom.runtime.artifact import Artifact

A2, B4 = "Ascend910B3", "Ascend310B4"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AscendMachine:
    monkeypatch.setenv("FAKE_ATC_COUNT", str(tmp_path / "conversions"))
    return prepare(tmp_path, monkeypatch)


@pytest.fixture
def signals() -> Iterator[None]:
    """The command ignores further signals once it ends; a test's process goes on."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def conversions(machine: AscendMachine) -> int:
    file = machine.root / "conversions"
    return len(file.read_text().splitlines()) if file.exists() else 0


CASE_7 = {
    "1": (("--gears", "16,1"), "gear 16,1 is the largest and has one sequence"),
    "2": (("--gears", "16,1;32"), "gear 2 ('32') has 1 value(s), must have 2"),
    "3": (("--gears", "16,-1;32,2"), "gear 1 ('16,-1') still has a -1"),
    "4": (
        ("--gears", ";".join(f"{n},1" for n in range(1, 102))),
        "101 gears, the first too many is '101,1'",
    ),
    "5": (("--gears", "16,1;16,1"), "gear 16,1 is the largest and has one sequence"),
    "6": (("--gears", "16,1;32,2;64,4", "--input-shape-range"), "exclude each other"),
}


@pytest.mark.parametrize(
    ("target", "name"), [*((A2, name) for name in CASE_7), *((B4, name) for name in "12345")]
)
def test_case_7_gear_lists_that_atc_will_refuse(
    machine: AscendMachine, toy_model: Any, target: str, name: str
) -> None:
    options, words = CASE_7[name]
    out = machine.root / "out"
    arguments = (toy_model.folder, "--target", target, "--cann", machine.cann(), "-o", out)
    result = machine.run(*arguments, *options)
    assert result.exit_code == 2, result.output  # the list alone is wrong, whatever the model
    assert words in " ".join(result.stderr.split())
    assert conversions(machine) == 0
    assert not out.exists()


def test_case_7_a_valid_list_is_passed_through_in_order(
    machine: AscendMachine, toy_model: Any
) -> None:
    folder = machine.root / "bundle"
    result = machine.run(
        *(toy_model.folder, "--target", B4, "--emit", "atc", "-o", folder),
        *("--gears", "64,4;16,2;32,3;16,2"),
    )
    assert result.exit_code == 0, result.output
    script = (folder / "compile.sh").read_text()
    (line,) = [text for text in script.splitlines() if "--dynamic_dims=" in text]
    shapes = next(text for text in script.splitlines() if "--input_shape=" in text)
    # input_ids T, positions T, block_table B, cu_seqlens B+1, kv_lens B, logits_rows R.
    assert "input_ids:-1;positions:-1;block_table:-1," in shapes
    assert "64,64,4,5,4,4;16,16,2,3,2,2;32,32,3,4,3,3" in line
    assert line.count(";") == 2  # the double one is gone


@pytest.mark.parametrize("place", ["not/there/yet", "with space/模型 一"])
def test_case_9_1_and_2_places_that_atc_cannot_write_to(
    machine: AscendMachine, toy_model: Any, place: str
) -> None:
    out = machine.root / place
    result = machine.run(toy_model.folder, "--target", B4, "--cann", machine.cann(), "-o", out)
    assert result.exit_code == 0, result.output
    Artifact.open(out).verify()
    assert os.listdir(out.parent) == [out.name]
    assert conversions(machine) == 1


@pytest.mark.usefixtures("signals")
def test_case_9_5_ctrl_c_during_the_conversion(
    machine: AscendMachine, toy_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, out = machine.root / "pids", machine.root / "made" / "out"
    monkeypatch.setenv("FAKE_ATC_HANG", str(pids))

    def press() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if pids.exists() and len(pids.read_text().split()) == 2:
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.02)

    thread = threading.Thread(target=press)
    thread.start()
    result = machine.run(toy_model.folder, "--target", B4, "--cann", machine.cann(), "-o", out)
    thread.join()
    assert result.exit_code == 130, result.output
    assert "Interrupted; nothing was changed." in result.stderr
    assert "is ready" not in result.output
    assert not out.parent.exists()
    deadline = time.monotonic() + 5
    while any(_alive(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < deadline, "the child goes on"
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[0] != "Z"
