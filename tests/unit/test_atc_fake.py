"""The fake atc keeps the real one's contract, and gate and fake agree on what is refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from fake_atc.cann_tree import make_cann, make_plugin
from onnx_samples import node, save_tiny, tiny_model, tiny_nodes

from pagedom.compiler.onnx_gate import GateContext, check_onnx, own_plugin

FAILED = "ATC run failed, Please check the detail log, Try 'atc --help' for more information"
GOOD = {
    "framework": "5",
    "soc_version": "Ascend910B3",
    "input_format": "ND",
    "input_shape": "x:8,4;rows:2",
    "precision_mode_v2": "origin",
}


class Atc:
    """Runs the fake in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = make_cann(folder / "cann") / "bin" / "atc"
        self.model = save_tiny(folder / "m.onnx")
        plugin = make_plugin(folder / "vendor", ["pagedom::1::RmsNorm"])
        self.env = {**os.environ, "ASCEND_CUSTOM_OPP_PATH": f"/absent:{plugin}"}

    def __call__(self, **changes: Any) -> subprocess.CompletedProcess[str]:
        options = {**GOOD, "model": self.model, "output": self.folder / "out" / "m", **changes}
        words = [f"--{name}={value}" for name, value in options.items() if value is not None]
        return self.raw(*words)

    def raw(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *words], env=self.env, capture_output=True, text=True, check=False
        )


@pytest.fixture(scope="module")
def atc(tmp_path_factory: pytest.TempPathFactory) -> Atc:
    return Atc(tmp_path_factory.mktemp("atc"))


def test_success(atc: Atc) -> None:
    done = atc()
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "ATC start working now, please wait for a moment."
    assert lines[-2:] == ["...", "ATC run success, welcome to the next use."]
    assert (atc.folder / "out" / "m.om").stat().st_size > 256


def test_help_lists_the_options(atc: Atc) -> None:
    done = atc.raw("--help")
    assert done.returncode == 0
    assert "--soc_version" in done.stdout


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"framework": None}, "E10007"),
        ({"framework": "7"}, "E10007"),
        ({"soc_version": None}, "E10054"),
        ({"soc_version": "Ascend910"}, "E10001"),
        ({"output": None}, "E10054"),
        ({"output": "a b/m"}, "E10001"),
        ({"output": "folder/"}, "E10022"),
        ({"model": "absent.onnx"}, "E10001"),
        ({"input_format": "NHWC"}, "E10001"),
        ({"external_weight": "3"}, "E10006"),
        ({"log": "loud"}, "E10010"),
        ({"precision_mode_v2": "fp64"}, "E10001"),
        ({"precision_mode": "force_fp16"}, "E10056"),
        ({"input_shape": "x,8,4"}, "E10002"),
        ({"input_shape": "x:8,a"}, "E10014"),
        ({"input_shape": "x:0,4;rows:2"}, "E10011"),
        ({"input_shape": "x:8,4;row:2"}, "E10016"),
        ({"input_shape": "x:8,4,1;rows:2"}, "E10049"),
        ({"dynamic_dims": "8;4"}, "E10001"),
        ({"input_shape": "x:-1,4;rows:-1", "dynamic_dims": "8;4"}, "E10003"),
        ({"input_shape": "x:-1,4;rows:-1", "dynamic_dims": "8,2"}, "E10035"),
        ({"input_shape": "x:-1,4;rows:-1", "dynamic_dims": "8,2;8,2"}, "E10039"),
        ({"input_shape": "x:-1,4;rows:-1", "dynamic_dims": "8,2;0,1"}, "E10038"),
        ({"input_shape": "x:-1,4;rows:-1", "dynamic_dims": "8,-1;4,1"}, "E10001"),
        ({"input_shape": "x:1~8,4;rows:-1", "dynamic_dims": "8,2;4,1"}, "E10040"),
        ({"dynamic_dims": "1;2", "input_shape_range": "x:[1,4]"}, "E10009"),
        ({"dynamic_batch_size": "1,2"}, "E10031"),
        ({"dynamic_batch_size": "1,2", "input_shape": "x:8,-1;rows:2"}, "E10018"),
    ],
)
def test_refused_arguments(atc: Atc, changes: dict[str, Any], code: str) -> None:
    done = atc(**changes)
    assert done.returncode == 255
    assert FAILED in done.stdout
    assert f"({code}): " in done.stdout


def test_too_many_gears_and_an_older_text(atc: Atc, monkeypatch: pytest.MonkeyPatch) -> None:
    many = ";".join(f"{size},1" for size in range(1, 102))
    done = atc(input_shape="x:-1,4;rows:-1", dynamic_dims=many)
    assert "(E10036): " in done.stdout
    monkeypatch.setitem(atc.env, "FAKE_ATC_OLD_TEXTS", "1")
    done = atc(input_shape="x:-1,4;rows:-1", dynamic_dims="8;4")
    assert "(E10045): " in done.stdout


def test_an_unknown_option_is_named_on_stderr_alone(atc: Atc) -> None:
    done = atc(weight_refs="1")
    assert done.returncode == 255
    assert "unknown command line flag 'weight_refs'" in done.stderr
    assert "E19999: Inner Error!" in done.stdout


def test_json_and_display_of_an_om(atc: Atc, tmp_path: Path) -> None:
    om = atc.folder / "out" / "m.om"
    assert atc().returncode == 0
    shown = atc.raw("--mode=6", f"--om={om}").stdout
    assert "Original Atc command line: atc --framework=5" in shown
    assert "soc_version[Ascend910B3]" in shown
    assert atc.raw("--mode=1", f"--om={om}", f"--json={tmp_path / 'm.json'}").returncode == 0
    names = [op["name"] for op in json.loads((tmp_path / "m.json").read_text())["graph"][0]["op"]]
    assert names[:2] == ["x", "rows"]
    (tmp_path / "bad.om").write_bytes(b"no om")
    assert "Invalid om file." in atc.raw("--mode=6", f"--om={tmp_path / 'bad.om'}").stdout


def bad_models() -> dict[str, tuple[onnx.ModelProto, str]]:
    """Return models that the parser refuses, with its code."""
    three = tiny_nodes()
    three[1] = node("RmsNorm", ["h", "g", "g"], ["n"], name="norm", domain="pagedom")
    unknown = tiny_nodes()
    unknown[1] = node("Attention", ["h", "g"], ["n"], name="att")
    return {
        "opset": (tiny_model(opsets=[("", 20), ("pagedom", 1)]), "E13010"),
        "version": (tiny_model(opsets=[("", 18), ("pagedom", 2)]), "E13010"),
        "operator": (tiny_model(unknown), "E13010"),
        "domain": (tiny_model(opsets=[("", 18)]), "E19999"),
        "inputs": (tiny_model(three), "E19999"),
    }


@pytest.mark.parametrize("name", ["good", *bad_models()])
def test_gate_and_parser_agree(atc: Atc, tmp_path: Path, name: str) -> None:
    model, code = bad_models().get(name, (tiny_model(), ""))
    path = tmp_path / "m.onnx"
    onnx.save_model(model, str(path))
    done = atc(model=path)
    context = GateContext(plugin=own_plugin(), fixed={"T": 8, "R": 2})
    found = check_onnx(ir.from_proto(model), context)
    assert (done.returncode != 0) == bool(found)
    if code:
        assert f"({code}): " in done.stdout
        assert code in str(found[0])
