"""The doctor on made-up machines: every line it can write, and its exit code."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import acl_samples
import pytest
from click.testing import CliRunner
from doctor_machine import MadeUpMachine

from pagedom.runtime.artifact import building_artifact, read_manifest
from pagedom.runtime.artifact_memory import plan_artifact
from pagedom.runtime.cli import run_om
from pagedom.runtime.doctor import NOTE, OK, PROBLEM, WARNING, Finding, Page, examine
from pagedom.runtime.doctor_findings import size
from pagedom.runtime.doctor_machine import satisfies
from pagedom.runtime.engine_options import EngineOptions
from pagedom.runtime.om_file.om_writer import write_om


@pytest.fixture
def machine(tmp_path: Path) -> MadeUpMachine:
    return MadeUpMachine(tmp_path / "machine")


def look(machine: MadeUpMachine, *artefacts: Path, **changes: object) -> Page:
    return examine(machine.here(**changes), artefacts)


def lines(page: Page, topic: str) -> list[Finding]:
    return [finding for finding in page.findings if finding.topic == topic]


def line(page: Page, topic: str) -> Finding:
    (found,) = lines(page, topic)
    return found


def artefact(folder: Path, page_bytes: int | None = None, **changes: object) -> Path:
    """Write a small artefact with facts changed; page_bytes: by the width of its heads."""
    manifest = dataclasses.replace(acl_samples.sample_manifest(), **changes)
    model = manifest.model
    if page_bytes is not None:
        dim = page_bytes // (manifest.page_size * 2 * model.num_layers * model.num_kv_heads * 4)
        model = dataclasses.replace(model, head_dim=dim)
    shape = ("P", "S", model.num_kv_heads, model.head_dim)
    inputs = tuple(
        dataclasses.replace(each, shape=shape) if "_cache." in each.source else each
        for each in manifest.inputs
    )
    with building_artifact(folder) as build:
        write_om(build.folder / "model.om", acl_samples.sample_model())
        build.manifest = dataclasses.replace(manifest, model=model, inputs=inputs)
    return folder


def test_without_cann_nothing_blocks(machine):
    page = look(machine)
    assert not page.blocked
    for topic in ("CANN", "driver", "acl", "parser plugin"):
        assert line(page, topic).status == NOTE
    assert line(page, "memory").seen == "8.0 GiB of 16.0 GiB free"


def test_a_whole_machine(machine):
    page = look(machine.whole())
    assert not page.blocked
    assert "8.1.RC1" in line(page, "CANN").seen
    assert "24.1.rc2" in line(page, "driver").seen
    assert "910B3, health OK" in line(page, "card 0").seen
    assert line(page, "device 0").seen == "Ascend910B3, 48.0 GiB of 64.0 GiB free"
    assert {f.status for f in page.findings if f.topic != "parser plugin"} <= {OK, NOTE, WARNING}


@pytest.mark.parametrize(("file", "text", "release"), [
    ("version.cfg", "runtime_running_version=[7.5.0.5.220:8.0.RC3]\n", "8.0.RC3"),
    ("x86_64-linux/ascend_toolkit_install.info", "version=8.2.RC1\n", "8.2.RC1"),
    ("opp/version.info", "Version=1.84\nversion_dir=8.0.0\n", "8.0.0"),
    ("share/info/runtime/version.info", "Version=9.0.0\n", "9.0.0"),
])  # fmt: skip
def test_every_form_of_the_version(machine, file, text, release):
    machine.write(f"toolkit/{file}", text)
    machine.environ["ASCEND_HOME_PATH"] = str(machine.root / "toolkit")
    machine.acl()
    assert release in line(look(machine), "CANN").seen


def test_a_cann_whose_environment_is_not_set(machine):
    machine.write("usr/local/Ascend/ascend-toolkit/latest/version.cfg", "")
    found = line(look(machine), "CANN")
    assert found.status == WARNING
    assert "set_env.sh" in found.advice


def test_a_home_that_is_gone_and_one_without_a_version(machine):
    machine.environ["ASCEND_HOME_PATH"] = str(machine.root / "gone")
    page = look(machine)
    assert line(page, "CANN").status == PROBLEM
    assert line(page, "$ASCEND_HOME_PATH").status == WARNING
    (machine.root / "gone").mkdir()
    machine.acl()
    assert line(look(machine), "CANN").status == WARNING


# The rows 1-5 of the error catalogue: what `import acl` and `acl.init` say, and the advice.
@pytest.mark.parametrize(("code", "advice"), [
    ('raise ImportError("No module named \'acl\'")', "site-packages"),
    ('raise ImportError("libascendcl.so: cannot open shared object file: No such file")',
     "driver/lib64"),
    ('raise ImportError("libgomp.so.1: cannot allocate memory in static TLS block")',
     "LD_PRELOAD"),
    ('raise ImportError("libhost_cpu.so: undefined symbol: _ZN3fooEv")', "CANN versions are mixed"),
    ("def init(*a): return 100039", "devlib"),
    ("def init(*a): return 148049", "opp folder is readable"),
    ("rt.set_device = lambda i: 507033", "EL0004"),
    ("rt.set_device = lambda i: 107001", "ASCEND_RT_VISIBLE_DEVICES"),
    ("rt.get_device_count = lambda: (0, 207004)", "In a container map"),
    ("rt.get_device_count = lambda: (0, 0)", "In a container map"),
    ("import os; os._exit(139)", "driver hangs, or a library crashed"),
])  # fmt: skip
def test_what_acl_says_becomes_advice(machine, code, advice):
    machine.whole().acl(code + "\n")
    page = look(machine)
    assert page.blocked
    wrong = [f for f in page.findings if f.topic in ("acl", "devices") and f.status == PROBLEM]
    assert advice in wrong[0].advice


def test_a_driver_that_hangs_does_not_hang_the_doctor(machine):
    machine.whole().acl("import time; time.sleep(60)\n")
    start = time.monotonic()
    found = line(look(machine, timeout_s=0.5), "acl")
    assert time.monotonic() - start < 10
    assert (found.status, found.seen) == (PROBLEM, "`import acl` did not end")


def test_init_by_somebody_else_is_fine(machine):
    machine.whole().acl("def init(*a): return 100002\n")
    assert not look(machine).blocked


def test_devices_that_are_full(machine):
    machine.whole().acl("rt.get_mem_info = lambda kind: (1 << 30, 64 << 30, 0)\n")
    assert line(look(machine), "device 0").status == WARNING


@pytest.mark.parametrize(("value", "words"), [
    ("0,0", "names card 0 twice"),
    ("1,0", "names card 0 behind card 1"),
    ("0,x", "'x' is not read"),
    ("0, 1", "' 1' is not read"),
    ("0,7", "no /dev/davinci7"),
    ("", "it is empty"),
])  # fmt: skip
def test_visible_devices(machine, value, words):
    machine.whole().environ["ASCEND_RT_VISIBLE_DEVICES"] = value
    found = lines(look(machine), "ASCEND_RT_VISIBLE_DEVICES")[0]
    assert found.status == PROBLEM
    assert words in found.seen


def test_visible_devices_that_exist(machine):
    machine.whole().environ["ASCEND_RT_VISIBLE_DEVICES"] = "0"
    assert line(look(machine), "ASCEND_RT_VISIBLE_DEVICES").status == OK


def test_cards(machine):
    machine.whole().npu_smi(health="Alarm")
    assert line(look(machine), "card 0").status == WARNING
    machine.npu_smi(code=3)
    assert line(look(machine), "npu-smi").status == PROBLEM
    (machine.bin / "npu-smi").unlink()
    assert line(look(machine), "npu-smi").status == WARNING


def test_no_device_nodes(machine):
    machine.whole()
    (machine.root / "dev" / "davinci0").unlink()
    found = line(look(machine), "device nodes")
    assert found.status == PROBLEM
    assert "davinci_manager" in found.advice


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_device_nodes_without_rights(machine):
    machine.whole()
    (machine.root / "dev" / "davinci0").chmod(0)
    assert "no right to open davinci0" in line(look(machine), "device nodes").seen


def test_a_driver_folder_without_a_version(machine):
    machine.whole().write("usr/local/Ascend/driver/version.info", "")
    assert line(look(machine), "driver").status == WARNING


def test_libraries_of_two_releases_and_stubs(machine):
    one, other = machine.cann("8.1.RC1", "one"), machine.cann("8.2.RC1", "two")
    machine.driver()
    machine.acl()
    paths = [str(one / "lib64"), str(other / "lib64"), str(other / "x86_64-linux/devlib")]
    machine.environ["LD_LIBRARY_PATH"] = ":".join(paths)
    stubs, mixed = lines(look(machine), "libraries")
    assert "devlib" in stubs.seen
    assert "8.1.RC1" in mixed.seen
    assert "8.2.RC1" in mixed.seen
    machine.environ["LD_LIBRARY_PATH"] = paths[0] + ":" + str(one / "compiler/lib64")
    assert lines(look(machine), "libraries") == []


def plugin(machine, **changes):
    values = {"schema": 1, "version": "0.1.0", "cann_version": "8.1.RC1", "operators": [{}, {}]}
    folder = machine.write("vendors/p/pagedom_plugin.json", json.dumps(values | changes)).parent
    machine.write("vendors/p/framework/libpagedom.so", "")
    machine.environ["ASCEND_CUSTOM_OPP_PATH"] = f"/elsewhere:{folder}"
    return folder


def test_the_parser_plugin(machine):
    machine.whole()
    folder = plugin(machine)
    found = line(look(machine), "parser plugin")
    assert (found.status, "2 operators" in found.seen) == (OK, True)
    plugin(machine, cann_version="8.5.0")
    assert "this CANN is 8.1.RC1" in line(look(machine), "parser plugin").seen
    (folder / "framework" / "libpagedom.so").unlink()
    assert line(look(machine), "parser plugin").status == WARNING
    (folder / "pagedom_plugin.json").write_text("{")
    assert "--build-plugin" in line(look(machine), "parser plugin").advice


def test_the_plugin_names_are_the_compilers():
    from pagedom.compiler import atc_environment, plugin_sources
    from pagedom.runtime import doctor_cann

    assert doctor_cann.PLUGIN_MANIFEST == plugin_sources.MANIFEST
    assert doctor_cann.PLUGIN_VARIABLE == atc_environment.PLUGIN_VARIABLE


def test_memory_of_a_container(machine):
    machine.write("sys/fs/cgroup/memory.max", str(2 << 30))
    machine.write("sys/fs/cgroup/memory.current", str(3 << 29))
    found = line(look(machine), "memory")
    assert found.status == WARNING
    assert found.seen == "512.0 MiB free below this container's limit of 2.0 GiB"


@pytest.mark.parametrize(("version", "wanted", "answer"), [
    ("2026.4.1", "==2026.4.*", True),
    ("2026.5.0", "==2026.4.*", False),
    ("8.3", ">=8.2", True),
    ("8.1.9", ">=8.2", False),
    ("8.2.0", ">=8.2,<9", True),
    ("9.0", ">=8.2,<9", False),
    ("2.13.0+cpu", "==2.13.0", True),
    ("1.2", "", True),
])  # fmt: skip
def test_requirements(version, wanted, answer):
    assert satisfies(version, wanted) is answer


def test_a_wrong_package_blocks(machine, monkeypatch):
    import importlib.metadata

    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "jinja2":
            raise importlib.metadata.PackageNotFoundError(name)
        return "2025.1.0" if name == "openvino" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    seen = [f.seen for f in lines(look(machine), "packages") if f.status == PROBLEM]
    assert any(
        "openvino 2025.1.0 is installed, pagedom needs openvino==2026.4.*" in s for s in seen
    )
    assert any("jinja2 is not installed" in s for s in seen)


def test_variables_are_listed_with_why(machine):
    machine.environ["ASCEND_GLOBAL_LOG_LEVEL"] = "0"
    machine.environ["ASCEND_OPP_PATH"] = "/nowhere/opp"
    page = look(machine)
    assert "slow" in line(page, "$ASCEND_GLOBAL_LOG_LEVEL").seen
    assert "/nowhere/opp" in line(page, "$ASCEND_OPP_PATH").advice


def test_an_artefact_for_the_host(machine, tmp_path):
    memory = {"weights": 1 << 30}
    page = look(machine, artefact(tmp_path / "a", 32 << 10, memory=memory, page_size=32))
    assert line(page, "artefact").status == OK
    assert line(page, "executor").status == OK
    (tokens,) = re.findall(r"room for ([\d,]+) tokens", line(page, "room").seen)
    assert 7_339_000 < int(tokens.replace(",", "")) < 7_340_032  # of 7 GiB, without the buffers
    assert not page.blocked


@pytest.mark.parametrize(("changes", "topic", "status", "words"), [
    ({"page_size": 16}, "executor", WARNING, "multiple of 32"),
    ({"page_size": 32, "dtype": "float16"}, "executor", WARNING, "bfloat16"),
    ({"memory": {"weights": 9 << 30}}, "room", PROBLEM, "room for 0"),
    ({"page_bytes": 2 << 30, "max_seq_len": 32}, "room", WARNING, "room for"),
])  # fmt: skip
def test_what_a_host_artefact_may_lack(machine, tmp_path, changes, topic, status, words):
    found = line(look(machine, artefact(tmp_path / "a", **changes)), topic)
    assert found.status == status
    assert words in found.seen
    assert found.advice


def test_the_room_is_what_the_plan_says(machine, tmp_path):
    """Rows of the ledger that a sum of the manifest's figures would miss: a step's buffers."""
    folder = artefact(tmp_path / "a", 32 << 10, memory={"weights": 1 << 30})
    plan = plan_artifact(read_manifest(folder), EngineOptions(), 8 << 30)
    steps = plan.total_bytes - sum(
        plan.row(name).bytes for name in ("weights", "KV pages", "null page")
    )
    seen = line(look(machine, folder), "room").seen
    assert f"weights 1.0 GiB, buffers {size(steps)}, " in seen


@pytest.mark.parametrize(("num_pages", "status", "advice"), [
    (100, OK, ""),
    (7168, PROBLEM, "--num-pages 7167 or less"),
])  # fmt: skip
def test_pages_that_are_compiled_in_must_all_fit(machine, tmp_path, num_pages, status, advice):
    """An artefact with gears takes its whole cache at loading, or does not load."""
    memory = {"weights": 1 << 30}  # of 8 GiB
    page = look(machine, artefact(tmp_path / "a", 1 << 20, memory=memory, num_pages=num_pages))
    found = line(page, "room")
    assert found.status == status
    assert f"{num_pages:,} pages of" in found.seen
    assert advice in found.advice


NPU = {"target": "Ascend910B3", "soc": "Ascend910B3", "tools": {"cann": "8.1.RC1"}}


def test_an_artefact_for_this_chip(machine, tmp_path):
    page = look(machine.whole(), artefact(tmp_path / "a", **NPU))
    assert line(page, "chip") == Finding("chip", OK, "Ascend910B3")
    assert not page.blocked


@pytest.mark.parametrize(("changes", "topic", "words"), [
    ({"target": "Ascend310P3", "soc": "Ascend310P3"}, "chip", "needs Ascend310P3, this is"),
    ({"target": "Ascend310P3", "soc": "Ascend310P3", "dtype": "bfloat16"}, "dtype", "no bfloat16"),
    ({"tools": {"cann": "8.5.0"}}, "CANN of the artefact", "8.5.0"),
    ({"memory": {"weights": 60 << 30}}, "room", "on the device"),
])  # fmt: skip
def test_an_artefact_for_another_chip(machine, tmp_path, changes, topic, words):
    found = line(look(machine.whole(), artefact(tmp_path / "a", **(NPU | changes))), topic)
    assert found.status in (PROBLEM, WARNING)
    assert words in found.seen


def test_an_npu_artefact_without_a_device(machine, tmp_path):
    page = look(machine, artefact(tmp_path / "a", **NPU))
    assert page.blocked
    assert "--target host" in line(page, "chip").advice


def test_a_broken_artefact(machine, tmp_path):
    folder = artefact(tmp_path / "a")
    manifest = folder / "pagedom.json"
    manifest.write_text(manifest.read_text().replace('"schema": 1', '"schema": 9'))
    found = line(look(machine, folder), "artefact")
    assert found.status == PROBLEM
    assert "schema version 9" in found.seen
    absent = line(look(machine, tmp_path / "nothing"), "artefact")
    assert absent.status == PROBLEM
    assert absent.advice == "Give the folder that compile-model wrote."
    (artefact(tmp_path / "b") / "model.om").unlink()
    cut = line(look(machine, tmp_path / "b"), "artefact")
    assert "Copy the whole folder again" in cut.advice
    assert "Copy" not in cut.seen


def test_the_command(tmp_path):
    run = CliRunner().invoke
    page = run(run_om, ["doctor", str(artefact(tmp_path / "a", page_size=32))])
    assert page.exit_code == 0, page.output
    assert "Nothing blocks." in page.output
    data = json.loads(run(run_om, ["doctor", "--json"]).stdout)
    assert data["blocked"] is False
    assert "This machine" in data["sections"]
    bad = run(run_om, ["doctor", str(tmp_path / "nothing")])
    assert bad.exit_code == 1
    assert "-> " in bad.output


def test_it_imports_nothing_heavy_and_is_quick():
    code = (
        "import sys, time; start = time.perf_counter()\n"
        "from pagedom.runtime.doctor import Surroundings, examine\n"
        "examine(Surroundings())\n"
        "print([n for n in ('openvino', 'torch', 'onnx', 'acl') if n in sys.modules],\n"
        "      time.perf_counter() - start < 3)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] True"
