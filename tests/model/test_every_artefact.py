"""Compile, then verify, inspect, doctor and plan: every form of artefact goes all the way.

Chips are compiled by the fake atc, so nothing runs; what reads the artefact is the product's own.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from ascend_machine import AscendMachine, prepare
from click.testing import CliRunner, Result

from pagedom.runtime.artifact import Artifact, ArtifactError
from pagedom.runtime.cli import run_om
from pagedom.runtime.manifest import Manifest

FEW = ("--max-batch", 3, "--max-seq-len", 96)
GEARS = ("--gears", "4,4;24,4")
A2, P3, B4 = (("--target", f"Ascend{name}") for name in ("910B3", "310P3", "310B4"))
FORMS: dict[str, tuple[object, ...]] = {
    "host plain": (),
    "host gears": GEARS,
    "host rows": ("--cache-write", "rows"),
    "host rows gears": ("--cache-write", "rows", *GEARS),
    "910B3 gears": (*A2, *GEARS),
    "910B3 static": (*A2, "--gears", "24,4"),
    "910B3 range": (*A2, "--input-shape-range"),
    "910B3 rows": (*A2, "--cache-write", "rows", *GEARS),
    "310P3 tokens": (*P3, *GEARS),
    "310B4 rows": (*B4, *GEARS, "--memory", 8),
}
SHAPES = 16 << 10  # bytes of shapes and axes that are constants of a graph beside its weights


def run(*args: object) -> Result:
    return CliRunner().invoke(run_om, [str(arg) for arg in args])


def rows_of(plan: dict[str, Any]) -> dict[str, int]:
    return {row["name"]: row["bytes"] for row in plan["rows"]}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield prepare(tmp_path_factory.mktemp("forms"), patch)


@pytest.mark.parametrize("form", FORMS)
def test_compile_then_read(machine: AscendMachine, toy_model: Any, form: str) -> None:
    options = (*FEW, *FORMS[form])
    on_chip = "--target" in options
    out = machine.root / form.replace(" ", "-")
    here = ("--cann", machine.cann()) if on_chip else ()
    compiled = machine.run(toy_model.folder, *options, *here, "-o", out)
    assert compiled.exit_code == 0, compiled.output

    verified = run("verify", out)
    assert verified.exit_code == 0, verified.output
    shown = run("inspect", out)
    assert shown.exit_code == 0, shown.output
    manifest = Artifact.open(out).manifest
    assert (manifest.soc or manifest.target) in shown.output

    page = run("doctor", out)
    assert "Traceback" not in page.output
    told = [line for line in page.output.splitlines() if "  room  " in line or "chip  " in line]
    problems = [line for line in told if line.strip().startswith("problem")]
    assert [line for line in problems if "no device can be used here" not in line] == []
    assert any("no device can be used here" in line for line in told) is on_chip

    wanted = machine.run(toy_model.folder, *options, "--plan", "--json")
    assert wanted.exit_code == 0, wanted.output
    before = json.loads(wanted.stdout)["plan"]
    step = () if "--gears" in options else ("--max-batch-tokens", 512)
    result = run("plan", out, "--max-batch", 3, *step, "--json")
    assert result.exit_code == 0, result.output
    after = json.loads(result.stdout)["plan"]
    for key in ("token_bytes", "page_bytes", "pages_full", "contiguous_kv_bytes", "fits"):
        assert after[key] == before[key], key
    planned, found = rows_of(before), rows_of(after)
    for name in ("step inputs", "step outputs", "null page"):
        assert found[name] == planned[name], name
    if not on_chip:  # a chip's compiler says these itself
        assert found["workspace"] == planned["workspace"]
        constants = sum(planned[name] for name in before["constants"])
        assert constants <= found["weights"] <= constants + SHAPES
    assert sum(record.bytes for record in manifest.files.values()) == _bytes_in(out)
    if on_chip:
        ignored = run("generate", out, "-p", "w1", "--executor", "openvino", "--threads", 1)
        assert ignored.exit_code == 1
        assert "executor and threads: " in ignored.stderr
        assert "runs on the chip" in ignored.stderr
    _measured(out, manifest)


def _measured(out: Path, manifest: Manifest) -> None:
    """The padded baseline's benchmark takes every cache whose size is open, and names others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        shape_of = import_module("bench_padded").shape_of
    if manifest.num_pages:
        with pytest.raises(ArtifactError, match=f"a cache of {manifest.num_pages} pages compiled"):
            shape_of(out)
        return
    shape = shape_of(out)
    assert shape.page_bytes == manifest.memory["kv_per_page"]


def _bytes_in(folder: Path) -> int:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "pagedom.json"]
    return sum(path.stat().st_size for path in files)
