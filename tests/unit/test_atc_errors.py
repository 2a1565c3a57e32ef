"""ATC's output turned into causes, and the page generated from the same tables."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from pagedom.compiler.atc_codes import ATC_CODES, code_row
from pagedom.compiler.atc_errors import AtcError, Circumstances, find_causes, named_node

ROOT = Path(__file__).resolve().parents[2]
NODES = {
    "/layers.1/attn/PagedAttention": "pagedom::PagedAttention",
    "/layers.1/attn": "Identity",
    "/layers.1/Add": "Add",
    "/layers.1/Add_1": "Add",
}
FAILED = Circumstances(255)
# All codes of ATC's side that the collected facts name.
NAMED = """
E10001 E10002 E10003 E10009 E10012 E10016 E10018 E10036 E10037 E10040 E10041 E10045 E10049 E10054
E10055 E10061 E10501 E11010 E13000 E13001 E13010 E13015 E13023 E13025 E14001 E16001 E16002 E16004
E16005 E19010 E19999 E20001 E20002 E22001 E40001 E40002 E40020 E40021 E40024 E70001 E70018 E76002
EZ0001 EZ0007 EZ0501 EZ1001 EZ3002 EZ3003 EZ9010
"""


def test_every_code_of_the_facts_has_a_row() -> None:
    assert [code for code in NAMED.split() if code not in ATC_CODES] == []
    for code, row in ATC_CODES.items():
        assert row.meaning, code
        assert row.advice, code


def test_a_code_that_is_not_in_the_table_still_says_its_kind() -> None:
    assert "graph engine" in code_row("E17777").meaning
    assert "runtime" in code_row("EE9999").meaning


def test_new_style_message_keeps_its_text_and_finds_the_node() -> None:
    lines = [
        "ATC run failed, Please check the detail log, Try 'atc --help' for more information",
        "Not_Supported_Operator(E13010): No operator plugin is registered for Op: "
        "/layers.1/attn/PagedAttention, optype: pagedom::1::PagedAttention.",
        "        Solution: 1. If the operator is a custom operator, register it.",
        "        TraceBack (most recent call last):",
    ]
    (finding,) = find_causes(lines, FAILED, NODES)
    assert finding.code == "E13010"
    assert finding.message.endswith("optype: pagedom::1::PagedAttention.")
    assert finding.node == "/layers.1/attn/PagedAttention (pagedom::PagedAttention)"
    assert "--build-plugin" in finding.advice


def test_old_style_message_loses_its_stamp_and_keeps_its_second_line() -> None:
    lines = [
        "E10016: [PID: 4711] 2026-01-02-03:04:05.678.901 Opname [x] specified in [--input_shape]",
        "        is not found in the model",
        "        Possible Cause: N/A",
    ]
    (finding,) = find_causes(lines, FAILED)
    assert finding.message == "Opname [x] specified in [--input_shape] is not found in the model"


def test_an_internal_error_comes_last_and_log_lines_do_not_count() -> None:
    lines = [
        "[ERROR] GE(1,atc.bin):2026 [error_manager.cc:1]1 Report: error_code: E10014: x",
        "E19999: Inner Error!",
        "EZ3003: No supported Ops kernel and engine are found for [/layers.1/Add_1], optype [Add].",
    ]
    codes = [finding.code for finding in find_causes(lines, FAILED, NODES)]
    assert codes == ["EZ3003", "E19999"]


def test_a_message_names_the_longest_node_only() -> None:
    assert named_node("op /layers.1/Add_1 failed", NODES) == "/layers.1/Add_1 (Add)"
    assert named_node("op [/layers.1/Add] failed", NODES) == "/layers.1/Add (Add)"
    assert named_node("op /layers.1/Adder failed", NODES) is None


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("BrokenPipeError: [Errno 32] Broken pipe", 255),
        ("atc: line 21: 4711 Killed  ${PKG_PATH}/bin/atc.bin", 137),
        ("TBE Subprocess[task_distribute] raise error[], main process disappeared!", 255),
        ("nothing to see", -9),
        ("nothing to see", 137),
    ],
)
def test_killed_worker(line: str, status: int) -> None:
    seen = Circumstances(status, jobs=4, least_available_bytes=300 << 20)
    (finding,) = find_causes([line], seen)[:1]
    assert "killed" in finding.meaning
    assert "0.3 GiB" in finding.meaning
    assert "--compile-jobs 1 (now 4)" in finding.advice


def test_the_kernels_own_count_is_enough_to_name_the_cause() -> None:
    (finding,) = find_causes(["E22001: no result"], Circumstances(255, oom_kills=2))[:1]
    assert "killed 2 process(es)" in finding.meaning


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ERROR: unknown command line flag 'external_weight'", "--external_weight"),
        ("ModuleNotFoundError: No module named 'decorator'", "'decorator'"),
        ("x: libge_runner.so: cannot open shared object file: No such file", "libge_runner.so"),
    ],
)
def test_signatures_without_a_code(line: str, words: str) -> None:
    (finding,) = find_causes([line], FAILED)
    assert words in finding.meaning


def test_output_without_any_sign_says_its_last_line() -> None:
    (finding,) = find_causes(["begin", "the end", "...", ""], FAILED)
    assert finding.message == "the end"


def test_many_messages_of_one_code_are_explained_once() -> None:
    lines = [f"E13010: no plugin for Op: op{n}." for n in range(9)]
    text = str(AtcError("failed", find_causes(lines, FAILED), Path("/l/x.log"), 255))
    assert text.count("to do:") == 1
    assert "and 3 more of E13010" in text
    assert text.endswith("full output: /l/x.log")


def _tool() -> ModuleType:
    path = ROOT / "tools" / "troubleshooting.py"
    spec = importlib.util.spec_from_file_location("troubleshooting", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_tables_say() -> None:
    tool = _tool()
    assert tool.PAGE.read_text(encoding="utf-8") == tool.page(), (
        "run python tools/troubleshooting.py"
    )


def test_the_page_has_every_code_and_no_stray_column() -> None:
    text = _tool().page()
    for code in ATC_CODES:
        assert f"| {code} |" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows)


def test_what_our_plugin_says_comes_first() -> None:
    name = "/layers.1/attn/PagedAttention"
    said = f"node '{name}' (pagedom::1::PagedAttention): attribute 'num_heads' is missing"
    lines = [
        f"[pagedom-plugin] ERROR {said}",
        "ATC run failed, Please check the detail log, Try 'atc --help' for more information",
        "E19999: Inner Error! Model parse to graph failed",
    ]
    refusal, general = find_causes(lines, FAILED, NODES)
    assert refusal.message == said
    assert refusal.node == f"{name} (pagedom::PagedAttention)"
    assert "--build-plugin" in refusal.advice
    assert general.code == "E19999"
