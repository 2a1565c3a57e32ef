"""compile-model for chips, end to end with a stand-in for ATC: artefacts, bundles, failures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ascend_machine import AscendMachine, prepare
from dense_llama import dense_logits

from pagedom import Engine
from pagedom.compiler.atc_read_back import describe_om
from pagedom.compiler.onnx_gate import GateContext, check_onnx_file, plugin_operators
from pagedom.compiler.plugin_sources import registered_operators
from pagedom.models.config import ModelConfig
from pagedom.runtime.acl.host import HostAcl
from pagedom.runtime.acl.options import AclOptions
from pagedom.runtime.artifact import Artifact
from pagedom.runtime.device import Device
from pagedom.runtime.manifest import Manifest
from pagedom.runtime.om_model import OmModel, OmModelError
from pagedom.runtime.verify_command import verify_artifact

A2, A3, P3, B4 = "Ascend910B3", "Ascend910_9391", "Ascend310P3", "Ascend310B4"
FEW = ("--max-batch", 3)
SMALL = (*FEW, "--max-batch-tokens", 24)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AscendMachine:
    return prepare(tmp_path, monkeypatch)


@pytest.fixture
def model(toy_model: Any) -> Path:
    return toy_model.folder


def compiled(
    machine: AscendMachine, model: Path, target: str, *more: object, version: str = "9.1.0"
) -> Path:
    """Compile a small model and return the artefact."""
    out = machine.root / f"out-{target}"
    shapes = FEW if "--gears" in more else SMALL
    result = machine.run(
        model, "--target", target, "--cann", machine.cann(version), "-o", out, *shapes, *more
    )
    assert result.exit_code == 0, result.output
    return out


def manifest_of(folder: Path) -> Manifest:
    return Artifact.open(folder).manifest


def sources(manifest: Manifest) -> list[str]:
    return [each.source for each in manifest.inputs]


FUSED_INPUTS = ["slot_mapping", "block_table", "seq_ends", "kv_lens", "logits_rows"]
ROWS_INPUTS = ["block_table", "cu_seqlens", "kv_lens", "logits_rows"]


@pytest.mark.parametrize(("target", "family"), [(A2, "Ascend910B"), (A3, "Ascend910_93")])
def test_fused_with_gears(machine: AscendMachine, model: Path, target: str, family: str) -> None:
    out = compiled(machine, model, target)
    manifest = manifest_of(out)
    assert (manifest.target, manifest.soc) == (family, target)
    pools = ["key_pool", "value_pool"]
    assert sources(manifest) == ["input_ids", "positions", *FUSED_INPUTS, *pools]
    assert [each.role for each in manifest.outputs] == ["logits", "argmax"]
    assert manifest.padding_slot == -1
    assert manifest.gears[-1] == {"T": 24, "B": 4, "R": 4}
    assert manifest.max_batch == 3
    assert manifest.num_pages == 4  # the null page, and one of 128 tokens a sequence
    layers, pages = manifest.model.num_layers, manifest.num_pages
    assert manifest.inputs[-1].shape == (layers * pages, 128, 2, 64)
    assert manifest.tools["cann"] == "9.1.0"
    assert len(manifest.tools["pagedom-plugin"]) == 16
    assert manifest.memory["kv_per_page"] == 2 * 2 * 2 * 64 * 2 * 128
    assert manifest.memory["workspace"] > 0
    assert sorted(manifest.files) == ["model.om", "tokenizer.json", "tokenizer_config.json"]
    assert not [check for check in verify_artifact(out) if check.problems]
    om = describe_om(out / "model.om")
    assert om.soc_version == target
    assert "--tiling_schedule_optimize=1" in om.cmdline
    assert "--precision_mode_v2=origin" in om.cmdline
    assert f"--op_compiler_cache_dir={machine.cache / 'kernels'}" in om.cmdline
    assert f"--dynamic_dims={manifest.gears[0]['T']}," in om.cmdline
    assert os.listdir(out.parent).count(out.name) == 1
    assert not [name for name in os.listdir(out.parent) if name.startswith(f"{out.name}.")]


def test_an_older_cann_scatters_by_slot(machine: AscendMachine, model: Path) -> None:
    manifest = manifest_of(compiled(machine, model, A2, version="8.1.RC1"))
    assert manifest.padding_slot == 0  # padding goes into the null page
    layers, pages = manifest.model.num_layers, manifest.num_pages
    assert manifest.inputs[-1].shape == (layers * pages * 128, 2, 64)
    assert manifest.tools["cann"] == "8.1.RC1"


def test_tokens_with_gears(machine: AscendMachine, model: Path) -> None:
    """310P: one graph for prompts and single tokens, written by ScatterNdUpdate."""
    out = compiled(machine, model, P3)
    manifest = manifest_of(out)
    tokens = ["slot_mapping", "block_table", "token_seqs", "token_lens", "logits_rows"]
    pools = ["key_pool", "value_pool"]
    assert sources(manifest) == ["input_ids", "positions", *tokens, *pools]
    assert [each.role for each in manifest.outputs] == ["logits", "argmax"]
    assert (manifest.dtype, manifest.padding_slot) == ("float16", 0)
    assert manifest.gears[-1] == {"T": 24, "B": 4, "R": 4}
    assert [each.shape for each in manifest.inputs[4:6]] == [("T",), ("T",)]
    cmdline = describe_om(out / "model.om").cmdline
    assert "--tiling_schedule_optimize=1" in cmdline
    assert "token_lens:-1" in cmdline
    layers, pages = manifest.model.num_layers, manifest.num_pages
    assert manifest.inputs[-1].shape == (layers * pages * 128, 2, 64)  # as slots


@pytest.mark.parametrize(("target", "dtype"), [(P3, "float16"), (B4, "float16")])
def test_composed_with_gears(machine: AscendMachine, model: Path, target: str, dtype: str) -> None:
    out = compiled(machine, model, target, "--cache-write", "rows")
    manifest = manifest_of(out)
    assert sources(manifest) == ["input_ids", "positions", *ROWS_INPUTS, "kv_rows_pool"]
    assert [each.role for each in manifest.outputs] == ["logits", "argmax", "new_rows"]
    assert manifest.dtype == dtype
    row = 2 * manifest.model.num_layers * 2 * 64
    assert manifest.inputs[-1].shape == (4, 128, row)
    assert manifest.outputs[-1].shape == ("T", row)
    assert manifest.table_width == 1
    # 310B has none of our operators: no plugin is built.
    assert ("pagedom-plugin" in manifest.tools) == (target == P3)
    assert (machine.cache / "plugin").exists() == (target == P3)
    assert "tiling_schedule" not in describe_om(out / "model.om").cmdline


def test_static_and_range(machine: AscendMachine, model: Path) -> None:
    static = compiled(machine, model, A2, "--gears", "8,3")
    manifest = manifest_of(static)
    assert manifest.gears == ({"T": 8, "B": 3, "R": 3},)
    assert manifest.inputs[0].shape == (8,)
    layers = [f"{kind}_cache.{n}" for kind in ("key", "value") for n in range(2)]
    assert sources(manifest)[-4:] == layers
    assert "dynamic_dims" not in describe_om(static / "model.om").cmdline
    shutil.rmtree(static)
    ranged = out_of = machine.root / "ranged"
    result = machine.run(
        model, "--target", A2, "--cann", machine.cann(), "-o", out_of, "--input-shape-range"
    )
    assert result.exit_code == 0, result.output
    manifest = manifest_of(ranged)
    assert (manifest.gears, manifest.num_pages) == ((), 0)
    assert manifest.inputs[0].shape == ("T",)
    assert manifest.inputs[-1].shape == ("P", 128, 2, 64)
    cmdline = describe_om(ranged / "model.om").cmdline
    assert "tiling_schedule" not in cmdline
    assert "key_cache.0:-1,128,2,64" in cmdline


def test_weights_beside_the_om(machine: AscendMachine, model: Path) -> None:
    out = compiled(machine, model, A2, "--external-weight", 1)
    assert "weight/0123abcd" in manifest_of(out).files
    assert Artifact.open(out).verify() > 0


def test_nothing_is_compiled_twice(
    machine: AscendMachine, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = machine.root / "count"
    monkeypatch.setenv("FAKE_ATC_COUNT", str(count))
    out = compiled(machine, model, A2, "--compile-jobs", 1)
    first = (out / "model.om").read_bytes()
    compiled(machine, model, A2)
    assert (out / "model.om").read_bytes() == first
    assert count.read_text().splitlines()[0].endswith("jobs=1")
    assert len(count.read_text().splitlines()) == 1
    compiled(machine, model, A2, "--page-size", 64)
    assert len(count.read_text().splitlines()) == 2


@pytest.fixture
def failing(machine: AscendMachine, model: Path) -> Iterator[Any]:
    """Return a run that must fail, with an artefact from before in its place."""
    out = machine.root / "out"
    arguments = (model, "--target", A2, "--cann", machine.cann(), "-o", out, *SMALL)
    assert machine.run(*arguments).exit_code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    shutil.rmtree(machine.cache / "atc")

    def run(*more: object, code: int = 1) -> str:
        result = machine.run(*arguments, *more)
        assert result.exit_code == code, result.output
        assert result.stderr.count("Error: ") == 1
        return result.stderr

    yield run
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    left = [name for name in os.listdir(machine.root) if name.startswith(("out.", ".pagedom"))]
    assert left == []


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"FAKE_ATC_CODE": "E20001|Operator x failed."}, ("E20001 Operator x failed.", "to do:")),
        ({"FAKE_ATC_NO_OUTPUT": "1"}, ("without writing an .om",)),
        ({"FAKE_ATC_NO_SUCCESS_LINE": "1"}, ("without its success line",)),
        ({"FAKE_ATC_KILL_CHILD": "1"}, ("--compile-jobs 1",)),
        ({"FAKE_ATC_SOC": "Ascend310P3"}, ("it was made for Ascend310P3; Ascend910B3 is wanted",)),
        (
            {
                "FAKE_ATC_CODE": "E19999|Model parse to graph failed",
                "FAKE_ATC_STDERR": "[pagedom-plugin] ERROR node '/layers.0/attn/KVUpdate' "
                "(pagedom::1::KVUpdate): no operator ScatterPaKvCache",
            },
            ("node '/layers.0/attn/KVUpdate'", "no operator ScatterPaKvCache", "refuses the node"),
        ),
    ],
)
def test_a_failure_leaves_nothing(
    failing: Any,
    monkeypatch: pytest.MonkeyPatch,
    environ: dict[str, str],
    words: tuple[str, ...],
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    said = failing()
    for word in words:
        assert word in said
    assert ("full output: " in said) == ("FAKE_ATC_SOC" not in environ)


def test_refusals_before_any_work(failing: Any, machine: AscendMachine) -> None:
    assert "must be a multiple of 16" in failing("--page-size", 100)
    assert "exclude each other" in failing("--gears", "8,3;9,3", "--input-shape-range", code=2)
    assert "--max-batch-tokens 24 with --gears" in failing("--gears", "2,3;9,3", code=2)
    assert "float32 does not work on Ascend910B3" in failing("--dtype", "float32")
    assert not (machine.cache / "atc").exists()


def test_without_cann_it_says_what_else_there_is(
    machine: AscendMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(machine.root))
    result = machine.run("no-model-is-fetched-for-this", "--target", A2)
    assert result.exit_code == 1
    for word in ("no CANN with an executable atc", "--cann", "--emit atc", "--target host"):
        assert word in result.stderr


def test_json(machine: AscendMachine, model: Path) -> None:
    result = machine.run(
        model, "--target", A2, "--cann", machine.cann(), "-o", machine.root / "x", *SMALL, "--json"
    )
    data = json.loads(result.stdout)
    names = [stage["name"] for stage in data["stages"]]
    assert "Compile with ATC" in names
    assert "Build the parser plugin" in names


# Bundles


def write_bundle(machine: AscendMachine, model: Path, target: str, *more: object) -> Path:
    folder = machine.root / "bundle"
    result = machine.run(model, "--target", target, "--emit", "atc", "-o", folder, *SMALL, *more)
    assert result.exit_code == 0, result.output
    assert "--from-om" in result.stderr
    return folder


def run_script(folder: Path, cann: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "ATC": str(cann / "bin" / "atc"), **environ}
    return subprocess.run([folder / "compile.sh"], env=env, capture_output=True, text=True)


def quick_cmake(machine: AscendMachine) -> str:
    """Return a PATH whose cmake installs a plugin without compiling anything."""
    from pagedom.compiler.plugin_sources import manifest_text

    ready = machine.root / "ready"
    (ready / "framework").mkdir(parents=True)
    keys = b"\0".join(key.encode() for key in registered_operators()) + b"\0"
    (ready / "framework" / "libpagedom_onnx_plugin.so").write_bytes(keys)
    (ready / "pagedom_plugin.json").write_text(manifest_text("0", "8.1.RC1"))
    cmake = machine.root / "bin" / "cmake"
    cmake.parent.mkdir()
    cmake.write_text(
        '#!/bin/sh\nif [ "$1" = --install ]; then mkdir -p "$4/vendors" && '
        f'cp -r "{ready}" "$4/vendors/pagedom"; fi\n'
    )
    cmake.chmod(0o755)
    return f"{cmake.parent}:{os.environ['PATH']}"


def test_a_bundle_there_and_back(machine: AscendMachine, model: Path) -> None:
    folder = write_bundle(machine, model, A2, "--cann", "8.1.RC1")
    early = machine.run("--from-om", folder)
    assert early.exit_code == 1
    assert "holds no model.om yet" in early.stderr
    moved = machine.root / "elsewhere"
    shutil.move(folder, moved)
    done = run_script(moved, machine.cann("8.1.RC1"), PATH=quick_cmake(machine))
    assert done.returncode == 0, done.stdout + done.stderr
    out = machine.root / "out"
    result = machine.run("--from-om", moved, "-o", out)
    assert result.exit_code == 0, result.output
    direct = compiled(machine, model, A2, version="8.1.RC1")
    found, wanted = manifest_of(out), manifest_of(direct)
    for name in ("inputs", "outputs", "gears", "num_pages", "padding_slot", "memory", "model"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert sorted(found.files) == sorted(wanted.files)
    assert found.tools["cann"] == "8.1.RC1"
    assert "pagedom-plugin" in found.tools
    again = machine.run("--from-om", moved, "-o", out, "--json")
    assert json.loads(again.stdout)["target"] == A2


def test_a_bundle_with_another_om(machine: AscendMachine, model: Path) -> None:
    folder = write_bundle(machine, model, B4)
    assert not (folder / "plugin").exists()
    done = run_script(folder, machine.cann(), FAKE_ATC_SOC="Ascend310B1")
    assert done.returncode == 0, done.stdout
    result = machine.run("--from-om", folder, "-o", machine.root / "out")
    assert result.exit_code == 1
    assert "Error: model.om is not the OM that is wanted" in result.stderr
    assert "it was made for Ascend310B1; Ascend310B4 is wanted" in result.stderr
    assert not (machine.root / "out").exists()
    assert run_script(folder, machine.cann()).returncode == 0
    other = machine.run("--from-om", folder, "--target", A2)
    assert f"was written for {B4}, --target says {A2}" in other.stderr
    (folder / "artefact" / "pagedom.json").write_text("{")
    broken = machine.run("--from-om", folder, "-o", machine.root / "out")
    assert "cannot be used" in broken.stderr
    assert "no bundle of --emit atc" in machine.run("--from-om", machine.root).stderr


def test_a_bundle_is_replaced_only_as_it_was_written(machine: AscendMachine, model: Path) -> None:
    folder = write_bundle(machine, model, B4)
    write_bundle(machine, model, B4)
    (folder / "notes.txt").write_text("mine")
    result = machine.run(model, "--target", B4, "--emit", "atc", "-o", folder, *SMALL)
    assert result.exit_code == 1
    assert "notes.txt" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_the_real_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    """Built here and by a bundle's script; the fake atc reads what it registers."""
    machine = prepare(tmp_path, monkeypatch, quick_plugin=False)
    built = machine.run("--build-plugin", "--cann", machine.cann())
    assert built.exit_code == 0, built.output
    assert (Path(built.stdout.strip()) / "framework" / "libpagedom_onnx_plugin.so").is_file()
    assert manifest_of(compiled(machine, model, A2)).padding_slot == -1
    folder = write_bundle(machine, model, A2, "--cann", "8.1.RC1")
    done = run_script(folder, machine.cann("8.1.RC1"))
    assert done.returncode == 0, done.stdout + done.stderr
    result = machine.run("--from-om", folder, "-o", tmp_path / "finished")
    assert result.exit_code == 0, result.output
    assert manifest_of(tmp_path / "finished").padding_slot == 0


# The graph that ATC gets


@pytest.mark.parametrize("target", [A2, A3, P3, B4])
def test_the_file_passes_the_gate(machine: AscendMachine, model: Path, target: str) -> None:
    folder = write_bundle(machine, model, target)
    record = json.loads((folder / "bundle.json").read_text())
    shapes = {row["name"]: tuple(row["shape"]) for row in record["inputs"]}
    context = GateContext(
        plugin_operators(registered_operators()),
        shapes=shapes,
        gears=[tuple(gear) for gear in record["gears"]],
    )
    assert check_onnx_file(folder / "model.onnx", context) == []
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    kinds = {node.op_type for node in graph.node}
    assert ("PagedAttention" in kinds) == (target in (A2, A3))
    assert ("TokenAttention" in kinds) == ("SlotUpdate" in kinds) == (target == P3)
    assert ("Rotary" in kinds) == (target in (A2, A3))
    assert ("RmsNorm" in kinds) == (target != B4)


def test_composed_onnx_in_stock_onnxruntime(machine: AscendMachine, toy_model: Any) -> None:
    """The 310B's graph has base operators only: its logits are those of the dense model."""
    onnxruntime = pytest.importorskip("onnxruntime")
    folder = write_bundle(machine, toy_model.folder, B4, "--dtype", "float16")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    config = ModelConfig.from_hf(toy_model.values, None)
    ids, size = [5, 17, 3, 40, 22, 9, 31], 128
    pool = np.full((4, size, 2 * 2 * 2 * 64), np.nan, np.float16)
    names = [output.name for output in session.get_outputs()]
    for start, end in ((0, 4), (4, 6), (6, 7)):  # a prompt, a chunk, a token; two pages
        count = end - start
        feeds = {
            "input_ids": np.array(ids[start:end], np.int32),
            "positions": np.arange(start, end, dtype=np.int32),
            "block_table": np.array([[2]], np.int32),
            "cu_seqlens": np.array([0, count], np.int32),
            "kv_lens": np.array([end], np.int32),
            "logits_rows": np.array([count - 1], np.int32),
            "kv_rows_pool": pool,
        }
        out = dict(zip(names, session.run(None, feeds)))
        pool[2, start:end] = out["new_rows"]
        wanted = dense_logits(config, toy_model.arrays, ids[:end])[-1]
        error = np.abs(out["logits"][0] - wanted).max() / np.abs(wanted).max()
        assert error < 0.02
        assert out["next_ids"][0] == out["logits"][0].argmax()


# At run time


class Chip:
    """The host device, saying that it is a chip."""

    def __init__(self, soc: str) -> None:
        self._acl = HostAcl(AclOptions())
        self._soc = soc

    def get_soc_name(self) -> str:
        return self._soc

    def __getattr__(self, name: str) -> Any:
        return getattr(self._acl, name)


def test_the_host_device_does_not_try_a_chips_model(machine: AscendMachine, model: Path) -> None:
    artifact = Artifact.open(compiled(machine, model, A2))
    words = r"compiled for Ascend910B \(Ascend910B3\), and the host device"
    device = Device(HostAcl(AclOptions()), 0)
    try:
        with pytest.raises(OmModelError, match=words):
            OmModel.load(device, artifact)
    finally:
        device.close()
    if "acl" not in sys.modules:
        with pytest.raises(Exception, match="was compiled for Ascend910B and runs on CANN only"):
            Engine(artifact.folder)


@pytest.mark.parametrize(("soc", "refused"), [(P3, True), ("Ascend910B1", False)])
def test_another_chip_is_named_before_loading(
    machine: AscendMachine, model: Path, soc: str, refused: bool
) -> None:
    """A chip of the same family is the loader's to judge."""
    artifact = Artifact.open(compiled(machine, model, A2))
    device: Any = Device(Chip(soc), 0)  # type: ignore[arg-type]
    try:
        if refused:
            with pytest.raises(OmModelError, match=f"this device is {soc}: .*--target {soc}"):
                OmModel.load(device, artifact)
        else:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - the emulation's own refusal
                OmModel.load(device, artifact)
            assert "this device is" not in str(caught.value).split("The artefact")[0]
    finally:
        device.close()
