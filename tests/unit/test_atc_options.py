"""ATC's command line, environment, CANN on this machine, and the number of compile processes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from fake_atc.cann_tree import make_cann

from pagedom.compiler.atc_environment import child_environment
from pagedom.compiler.atc_jobs import GIB, Memory, plan_jobs, read_memory
from pagedom.compiler.atc_options import (
    AtcOptionError,
    AtcOptions,
    build_command,
    cache_terms,
    check_cann_version,
)
from pagedom.compiler.atc_shapes import AtcShapeError, fix_symbols, input_shape_option
from pagedom.compiler.cann_install import CannNotFoundError, find_cann, read_version
from pagedom.compiler.gear_list import parse_gears
from pagedom.compiler.target_resolve import resolve_target

A2, EDGE = resolve_target("Ascend910B3"), resolve_target("Ascend310B1")
SHAPES = {"input_ids": ("T",), "block_table": ("B", 32), "key_cache.0": (9, 128, 8, 128)}
GEARS = parse_gears("16,1;32,2", 2, A2.family.gears)


def command(options: AtcOptions, known: frozenset[str] | None = None) -> tuple[str, ...]:
    return build_command(Path("/c/atc"), Path("m.onnx"), Path("out/m"), options, known).argv


def test_the_command_is_a_list_in_atcs_own_terms() -> None:
    assert command(AtcOptions(A2, SHAPES, GEARS, device_tiling=True)) == (
        "/c/atc",
        "--model=m.onnx",
        "--output=out/m",
        "--mode=0",
        "--framework=5",
        "--soc_version=Ascend910B3",
        "--input_format=ND",
        "--input_shape=input_ids:-1;block_table:-1,32;key_cache.0:9,128,8,128",
        "--dynamic_dims=16,1;32,2",
        "--precision_mode_v2=origin",
        "--tiling_schedule_optimize=1",
        "--log=error",
    )


def test_every_option_appears_when_it_is_set(tmp_path: Path) -> None:
    options = AtcOptions(
        A2,
        fix_symbols(SHAPES, {"T": 8, "B": 2}),
        external_weight=1,
        output_type="FP32",
        op_cache=tmp_path,
        deterministic=True,
        log_level="info",
    )
    argv = command(options)
    for word in (
        "--input_shape=input_ids:8;block_table:2,32;key_cache.0:9,128,8,128",
        "--external_weight=1",
        "--output_type=FP32",
        "--deterministic=1",
        "--op_compiler_cache_mode=enable",
        f"--op_compiler_cache_dir={tmp_path}",
        "--log=info",
    ):
        assert word in argv


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precision": "int4"}, "precision"),
        ({"log_level": "loud"}, "log_level"),
        ({"external_weight": 3}, "external_weight"),
        ({"output_type": "FP32; rm -rf"}, "output_type"),
        ({"gears": parse_gears("16;32", 1, A2.family.gears)}, r"2 dim\(s\) of -1"),
        ({"device_tiling": True}, "static"),
        ({"target": EDGE}, "open dims"),
        ({"target": EDGE, "gears": GEARS, "device_tiling": True}, "no tiling on the device"),
    ],
)
def test_options_that_cannot_go_together(changes: dict[str, object], words: str) -> None:
    with pytest.raises(AtcOptionError, match=words):
        dataclasses.replace(AtcOptions(A2, SHAPES), **changes)


def test_an_older_atc_gets_the_older_spelling_or_a_refusal(tmp_path: Path) -> None:
    basic = frozenset({"soc_version"})
    built = build_command(
        Path("atc"), Path("m"), Path("o"), AtcOptions(A2, SHAPES, GEARS, op_cache=tmp_path), basic
    )
    assert "--precision_mode=must_keep_origin_dtype" in built.argv
    assert not any("precision_mode_v2" in word or "op_compiler" in word for word in built.argv)
    assert len(built.notes) == 3
    sinking = AtcOptions(A2, SHAPES, GEARS, device_tiling=True)
    with pytest.raises(AtcOptionError, match="tiling_schedule_optimize"):
        command(sinking, basic)


def test_an_option_newer_than_this_cann() -> None:
    options = AtcOptions(A2, SHAPES, GEARS, external_weight=2)
    check_cann_version(options, "9.0.0")
    check_cann_version(options, "")
    with pytest.raises(AtcOptionError, match=r"8\.1\.RC1 is too old.*external_weight=2 needs"):
        check_cann_version(options, "8.1.RC1")


def test_cache_terms_leave_out_what_does_not_change_the_result(tmp_path: Path) -> None:
    plain = AtcOptions(A2, SHAPES, GEARS)
    same = AtcOptions(A2, SHAPES, GEARS, op_cache=tmp_path, log_level="debug")
    other = AtcOptions(resolve_target("Ascend910B4"), SHAPES, GEARS)
    assert cache_terms(plain) == cache_terms(same) != cache_terms(other)


def test_shapes_that_cannot_be_written() -> None:
    with pytest.raises(AtcShapeError, match="'a:b'"):
        input_shape_option({"a:b": (1,)})
    with pytest.raises(AtcShapeError, match="E10011"):
        input_shape_option({"a": (0, 2)})


def test_case_7_a_good_list_reaches_atc_in_the_order_of_the_open_dims() -> None:
    shapes = {"block_table": ("B", 32), "input_ids": ("T",)}
    gears = parse_gears("1,16;2,32;1,16", 2, A2.family.gears)
    argv = command(AtcOptions(A2, shapes, gears))
    assert "--input_shape=block_table:-1,32;input_ids:-1" in argv
    assert "--dynamic_dims=1,16;2,32" in argv
    assert "twice" in gears.notes[0] or "2 times" in gears.notes[0]


def test_find_cann_prefers_what_was_said(tmp_path: Path) -> None:
    one, two, three = (make_cann(tmp_path / name, f"8.{name}.0") for name in "123")
    environ = {"ASCEND_HOME_PATH": str(one), "ASCEND_TOOLKIT_HOME": str(two)}
    assert find_cann(three, environ, []).version == "8.3.0"
    assert find_cann(None, environ, []).found_by == "ASCEND_HOME_PATH"
    assert find_cann(None, {"ASCEND_TOOLKIT_HOME": str(two)}, [three]).root == two
    assert find_cann(None, {"ASCEND_HOME_PATH": "/absent"}, [three]).found_by == "usual place"
    on_path = find_cann(None, {"PATH": str(one / "bin")}, [])
    assert (on_path.root, on_path.found_by) == (one, "atc on PATH")
    assert find_cann(two / "bin" / "atc").root == two
    with pytest.raises(CannNotFoundError, match=r"/absent.*--emit atc"):
        find_cann(None, {"ASCEND_HOME_PATH": "/absent", "PATH": ""}, [])


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("version.cfg", "toolkit_running_version=[7.7.0.1.238:8.1.RC1]\n", "8.1.RC1"),
        ("version.cfg", "# v\nruntime_running_version=[1.83.T8.0.B128:CANN-1.83]\n", "1.83"),
        ("aarch64-linux/ascend_toolkit_install.info", "version=8.5.0.alpha001\n", "8.5.0.alpha001"),
        ("compiler/version.info", "Version=7.7.0.1.238\nversion_dir=8.2.RC1\n", "8.2.RC1"),
        ("version.info", "Version=9.1.0\n", "9.1.0"),
        ("share/info/ge/version.info", 'version_dir="9.0.0-beta.2"\n', "9.0.0-beta.2"),
        ("opp/other.txt", "", ""),
    ],
)
def test_every_form_of_a_version_file(tmp_path: Path, file: str, text: str, version: str) -> None:
    path = tmp_path / "toolkit" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert read_version(tmp_path / "toolkit") == version


def test_the_folders_name_is_the_last_resort(tmp_path: Path) -> None:
    (tmp_path / "cann-9.1.0").mkdir()
    assert read_version(tmp_path / "cann-9.1.0") == "9.1.0"


def test_environment_of_the_child(tmp_path: Path) -> None:
    cann = find_cann(make_cann(tmp_path / "cann"))
    plugin = tmp_path / "vendors" / "pagedom"
    before = {"ASCEND_OPP_PATH": "/mine", "ASCEND_CUSTOM_OPP_PATH": f"/other:{plugin}", "A": "b"}
    env = child_environment(cann, plugin, 3, before)
    assert env["ASCEND_HOME_PATH"] == str(cann.root)
    assert env["ASCEND_OPP_PATH"] == "/mine"  # a sourced set_env.sh wins
    assert env["ASCEND_CUSTOM_OPP_PATH"] == f"{plugin}:/other"
    assert env["TE_PARALLEL_COMPILER"] == env["MAX_COMPILE_CORE_NUMBER"] == "3"
    assert str(cann.root / "python/site-packages") in env["PYTHONPATH"]
    assert env["A"] == "b"
    assert before["ASCEND_CUSTOM_OPP_PATH"].startswith("/other")


def test_compile_processes_follow_the_formula() -> None:
    def jobs(available: float, swap: float = 0, weights: float = 0, cores: int = 16) -> int:
        memory = Memory(int(available * GIB), int(swap * GIB))
        return plan_jobs(memory, int(weights * GIB), cores=cores).jobs

    assert jobs(64) == 8  # never more than ATC's own default
    assert jobs(64, cores=2) == 2
    assert jobs(12) == 5
    assert jobs(12, weights=2) == 3
    assert jobs(12, swap=8) == 7
    board = plan_jobs(Memory(3 * GIB, 0), 0, cores=4)
    assert (board.jobs, board.enough) == (1, False)
    assert "3.0 GiB" in board.note
    assert "1.0 GiB less" in board.note
    assert plan_jobs(None, 0).jobs == 1
    outside = plan_jobs(Memory(12 * GIB, 0), 2 * GIB, external=True, cores=16)
    assert outside.jobs == 4


def test_free_memory_is_the_smaller_of_machine_and_group(tmp_path: Path) -> None:
    proc, group = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    group.mkdir()
    assert read_memory(proc, group) is None
    (proc / "meminfo").write_text("MemAvailable:   2048 kB\nSwapFree:  1024 kB\nHugePages: 0\n")
    assert read_memory(proc, group) == Memory(2048 * 1024, 1024 * 1024)
    (group / "memory.max").write_text("1000000\n")
    (group / "memory.current").write_text("400000\n")
    assert read_memory(proc, group) == Memory(600000, 1024 * 1024)
    (group / "memory.max").write_text("max\n")
    assert read_memory(proc, group) == Memory(2048 * 1024, 1024 * 1024)
