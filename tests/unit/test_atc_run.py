"""The ATC driver on the fake atc: success, every kind of failure, cache, paths (field case 9)."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_atc.cann_tree import make_cann, make_plugin
from onnx_samples import save_tiny

from pagedom.compiler.atc import AtcJob, AtcResult, compile_onnx
from pagedom.compiler.atc_cache import AtcCache
from pagedom.compiler.atc_errors import AtcError
from pagedom.compiler.atc_options import AtcOptionError, AtcOptions
from pagedom.compiler.cann_install import find_cann
from pagedom.compiler.gear_list import parse_gears
from pagedom.compiler.target_resolve import resolve_target
from pagedom.runtime.om_file.description import describe_om

A2 = resolve_target("Ascend910B3")
STATIC = AtcOptions(A2, {"x": (8, 4), "rows": (2,)})
GEARED = AtcOptions(A2, {"x": ("T", 4), "rows": ("R",)}, parse_gears("8,2;4,1", 2, A2.family.gears))


@pytest.fixture
def make_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AtcJob]]:
    """Return a maker of jobs on the tiny model; conversions are counted in `count`."""
    for name in [name for name in os.environ if name.startswith("ASCEND")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("FAKE_ATC_COUNT", str(tmp_path / "count"))
    cann = find_cann(make_cann(tmp_path / "cann"))
    plugin = make_plugin(tmp_path / "vendor", ["pagedom::1::RmsNorm"])
    model = save_tiny(tmp_path / "in" / "tiny.onnx")
    job = AtcJob(model, tmp_path / "out" / "model.om", STATIC, cann, plugin)
    yield lambda **changes: dataclasses.replace(job, **changes)
    left = [path for path in tmp_path.rglob(".*") if "pagedom-atc" in path.name]
    assert left == [], "a working folder was left behind"


def conversions(tmp_path: Path) -> int:
    count = tmp_path / "count"
    return len(count.read_text().splitlines()) if count.exists() else 0


def refused(job: AtcJob) -> AtcError:
    with pytest.raises(AtcError) as caught:
        compile_onnx(job)
    assert not job.output.exists()
    assert list(job.output.parent.iterdir()) == []
    return caught.value


def test_a_static_model(make_job: Any, tmp_path: Path) -> None:
    lines: list[str] = []
    result = compile_onnx(make_job(), lines.append)
    assert result.om == tmp_path / "out" / "model.om"
    assert lines[0].startswith("ATC start working now")
    assert lines[-1].startswith("ATC run success")
    assert result.log is not None
    assert "ATC run success" in result.log.read_text()
    found = describe_om(result.om)
    assert found.soc_version == "Ascend910B3"
    assert [(row.name, row.dtype, row.shape) for row in found.inputs] == [
        ("x", "float32", (8, 4)),
        ("rows", "int32", (2,)),
    ]
    assert list(result.om.parent.iterdir()) == [result.om]


def test_a_geared_model_and_weights_outside(make_job: Any, tmp_path: Path) -> None:
    options = dataclasses.replace(GEARED, external_weight=1)
    result = compile_onnx(make_job(options=options))
    assert describe_om(result.om).gears == ("dims: 8x2, 4x1",)
    assert [path.relative_to(tmp_path / "out").as_posix() for path in result.files] == [
        "model.om",
        "weight/0123abcd",
    ]


def test_an_om_with_host_libraries_gets_the_wanted_name(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ATC_LINUX_NAME", "1")
    result = compile_onnx(make_job())
    assert [path.name for path in result.om.parent.iterdir()] == ["model.om"]


def test_the_child_gets_plugin_processes_and_a_folder_of_its_own(
    make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ATC_DUMP_ENV", str(tmp_path / "env"))
    compile_onnx(make_job(jobs=3))
    lines = (tmp_path / "env").read_text().splitlines()
    assert f"ASCEND_CUSTOM_OPP_PATH={tmp_path / 'vendor'}" in lines
    assert "TE_PARALLEL_COMPILER=3" in lines
    (cwd,) = [line.removeprefix("CWD=") for line in lines if line.startswith("CWD=")]
    assert Path(cwd) != Path.cwd()
    assert not Path(cwd).exists()


def test_case_9_1_an_absent_output_folder_is_made(make_job: Any, tmp_path: Path) -> None:
    output = tmp_path / "not" / "there" / "model.om"
    assert compile_onnx(make_job(output=output)).om == output
    assert output.is_file()


@pytest.mark.parametrize("folder", ["with space", "中文 文件夹", "a'b;c$(d)"])
def test_case_9_2_paths_that_atc_itself_refuses(make_job: Any, tmp_path: Path, folder: str) -> None:
    model = save_tiny(tmp_path / folder / "模型 1.onnx")
    output = tmp_path / folder / "out" / "模型.om"
    result = compile_onnx(make_job(onnx=model, output=output))
    assert result.om == output
    assert describe_om(output).soc_version == "Ascend910B3"
    assert sorted(path.name for path in output.parent.iterdir()) == ["模型.om"]


def test_case_9_3_a_killed_worker(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ATC_KILL_CHILD", "1")
    error = refused(make_job(jobs=4))
    assert error.returncode == 255
    text = str(error)
    assert "was killed" in text
    assert "GiB of memory was free" in text
    assert "--compile-jobs 1 (now 4)" in text
    assert error.findings[0].message.endswith("-9") or "pipe" in error.findings[0].message


def test_atc_itself_is_killed(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ATC_KILL_SELF", "1")
    assert "killed" in str(refused(make_job()))


@pytest.mark.parametrize(
    ("switch", "words"),
    [
        ("FAKE_ATC_NO_OUTPUT", "without writing an .om"),
        ("FAKE_ATC_NO_SUCCESS_LINE", "without its success line"),
    ],
)
def test_case_9_4_status_0_is_not_success(
    make_job: Any, monkeypatch: pytest.MonkeyPatch, switch: str, words: str
) -> None:
    monkeypatch.setenv(switch, "1")
    assert words in str(refused(make_job()))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def survivors(file: Path) -> list[int]:
    """Return the processes of a file that still run a moment later: SIGKILL takes its time."""
    pids = [int(word) for word in file.read_text().split()]
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline and any(alive(pid) for pid in pids):
        time.sleep(0.02)
    return [pid for pid in pids if alive(pid)]


def test_case_9_5_ctrl_c_ends_atc_and_its_workers(
    make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    monkeypatch.setenv("FAKE_ATC_HANG", str(pids))

    def interrupt(line: str) -> None:
        if line.startswith("compiling"):
            raise KeyboardInterrupt

    job = make_job(cache=AtcCache(tmp_path / "cache"))
    with pytest.raises(KeyboardInterrupt):
        compile_onnx(job, interrupt)
    assert survivors(pids) == []
    assert list(job.output.parent.iterdir()) == []
    monkeypatch.delenv("FAKE_ATC_HANG")
    assert not compile_onnx(job).cached  # nothing half-made was kept


def test_a_real_signal_is_noticed_at_once(
    make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    monkeypatch.setenv("FAKE_ATC_HANG", str(pids))

    def interrupt_ourselves() -> None:
        while not (pids.exists() and len(pids.read_text().split()) == 2):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt_ourselves)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        compile_onnx(make_job(timeout_s=30))
    thread.join()
    assert survivors(pids) == []


def test_the_time_limit_ends_atc_and_its_workers(
    make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    monkeypatch.setenv("FAKE_ATC_HANG", str(pids))
    start = time.monotonic()
    error = refused(make_job(timeout_s=1.5))
    assert time.monotonic() - start < 8
    assert "time limit of 1.5 s" in str(error)
    assert "compiling kernels" in str(error)
    assert survivors(pids) == []


def test_a_worker_left_behind_does_not_hold_us_up(
    make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ATC_LEAVE_WORKER", str(tmp_path / "pid"))
    start = time.monotonic()
    compile_onnx(make_job())
    assert time.monotonic() - start < 8
    assert survivors(tmp_path / "pid") == []


def test_the_message_of_a_code_comes_through(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "No supported Ops kernel and engine are found for [/norm/RmsNorm], optype [RmsNorm]."
    monkeypatch.setenv("FAKE_ATC_CODE", f"EZ3003|{text}")
    error = refused(make_job())
    assert [finding.code for finding in error.findings] == ["EZ3003"]
    assert error.findings[0].message == text
    assert error.findings[0].node == "/norm/RmsNorm (pagedom::RmsNorm)"
    assert error.log is not None
    assert str(error.log) in str(error)
    assert text in error.log.read_text()


def test_without_the_plugin_atc_refuses_our_operator(make_job: Any) -> None:
    error = refused(make_job(plugin=None))
    assert [finding.code for finding in error.findings] == ["E13010"]
    assert error.findings[0].node == "/norm/RmsNorm (pagedom::RmsNorm)"


def test_an_older_atc(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ATC_UNKNOWN_OPTIONS", "precision_mode_v2,tiling_schedule_optimize")
    result = compile_onnx(make_job())
    assert "--precision_mode=must_keep_origin_dtype" in result.notes[0]
    assert {row.dtype for row in describe_om(result.om).inputs} == {"float32", "int32"}
    sinking = dataclasses.replace(STATIC, device_tiling=True)
    with pytest.raises(AtcOptionError, match="tiling_schedule_optimize"):
        compile_onnx(make_job(options=sinking))


def test_progress_without_line_ends_is_kept_together(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ATC_SLOW", "0.2")
    lines: list[str] = []
    compile_onnx(make_job(), lines.append)
    assert "...." in lines


def test_the_same_graph_is_compiled_once(make_job: Any, tmp_path: Path) -> None:
    cache = AtcCache(tmp_path / "cache")
    job = make_job(cache=cache, options=dataclasses.replace(STATIC, external_weight=1))
    first = compile_onnx(job)
    again = compile_onnx(dataclasses.replace(job, output=tmp_path / "b" / "other.om"))
    assert (first.cached, again.cached, conversions(tmp_path)) == (False, True, 1)
    assert first.om.read_bytes() == again.om.read_bytes()
    assert (tmp_path / "b" / "weight" / "0123abcd").is_file()
    assert again.files[0].name == "other.om" or again.om.name == "other.om"
    assert compile_onnx(job).cached  # over the files that are there already
    assert sorted(path.name for path in job.output.parent.iterdir()) == ["model.om", "weight"]


@pytest.mark.parametrize("what", ["weights", "options", "cann", "plugin"])
def test_another_input_is_another_entry(make_job: Any, tmp_path: Path, what: str) -> None:
    job = make_job(cache=AtcCache(tmp_path / "cache"))
    compile_onnx(job)
    if what == "weights":
        save_tiny(job.onnx, scale=2.0)
    elif what == "options":
        job = dataclasses.replace(job, options=GEARED)
    elif what == "cann":
        job = dataclasses.replace(job, cann=dataclasses.replace(job.cann, version="8.2.RC1"))
    else:
        make_plugin(tmp_path / "vendor2", ["pagedom::1::RmsNorm", "more"])
        job = dataclasses.replace(job, plugin=tmp_path / "vendor2")
    assert not compile_onnx(job).cached
    assert conversions(tmp_path) == 2


def test_a_changed_file_makes_its_entry_invalid(make_job: Any, tmp_path: Path) -> None:
    job = make_job(cache=AtcCache(tmp_path / "cache"))
    result = compile_onnx(job)
    result.om.chmod(0o644)
    result.om.write_bytes(b"overwritten in place")
    assert not compile_onnx(job).cached
    assert describe_om(job.output).soc_version == "Ascend910B3"
    assert compile_onnx(job).cached


def test_two_runs_at_once_compile_once(
    make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ATC_SLOW", "0.5")
    cache = AtcCache(tmp_path / "cache")
    results: list[AtcResult] = []

    def run(name: str) -> None:
        results.append(compile_onnx(make_job(cache=cache, output=tmp_path / name / "m.om")))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.cached for result in results) == [False, True]
    assert conversions(tmp_path) == 1


def test_a_failure_is_not_kept_and_old_logs_go(
    make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(cache=AtcCache(tmp_path / "cache"))
    logs = tmp_path / "cache" / "logs"
    logs.mkdir(parents=True)
    for number in range(30):
        (logs / f"20000101-{number:06d}.log").touch()
    monkeypatch.setenv("FAKE_ATC_CODE", "E20001|Operator x compilation failed.")
    refused(job)
    monkeypatch.delenv("FAKE_ATC_CODE")
    assert not compile_onnx(job).cached
    assert len(list(logs.iterdir())) == 20


def test_prune_keeps_what_was_used_last(make_job: Any, tmp_path: Path) -> None:
    cache = AtcCache(tmp_path / "cache")
    one, two = make_job(cache=cache), make_job(cache=cache, options=GEARED)
    compile_onnx(one)
    compile_onnx(two)
    nbytes = max(path.stat().st_size for path in (tmp_path / "cache").rglob("model.om"))
    os.utime(next((tmp_path / "cache" / "entries").glob("*/entry.json")))
    time.sleep(0.02)
    assert compile_onnx(one).cached
    assert cache.prune(nbytes + 1000) > 0
    assert compile_onnx(one).cached
    assert not compile_onnx(two).cached


def test_memory_that_may_be_short_is_said_before(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pagedom.compiler import atc
    from pagedom.compiler.atc_jobs import Memory

    monkeypatch.setattr(atc, "read_memory", lambda: Memory(1 << 30, 0))
    lines: list[str] = []
    result = compile_onnx(make_job(), lines.append)
    assert "memory may be short: 1.0 GiB" in result.notes[0]
    assert lines[0] == f"note: {result.notes[0]}"


def test_jobs_and_limits_out_of_range(make_job: Any, tmp_path: Path) -> None:
    with pytest.raises(AtcOptionError, match="1 to 32"):
        make_job(jobs=0)
    with pytest.raises(AtcOptionError, match="above 0"):
        make_job(timeout_s=0.0)
    with pytest.raises(AtcError, match=r"no model at .*absent\.onnx"):
        compile_onnx(make_job(onnx=tmp_path / "absent.onnx"))
