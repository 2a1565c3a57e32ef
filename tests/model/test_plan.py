"""The ledger of a configuration is the ledger of the artefact that is compiled from it."""

from __future__ import annotations

import json

import pytest
from ascend_machine import prepare
from click.testing import CliRunner

from pagedom.compiler.advice_command import show_advice
from pagedom.compiler.request import CompileOptions
from pagedom.runtime.cli import run_om

FORMS = {
    "plain": {},
    "rows": {"cache_write": "rows"},
    "gears": {"gears": "4,4;64,5", "num_pages": 40},
}
SHAPES = 16 << 10  # bytes of shapes and axes that are constants of a graph beside its weights


@pytest.mark.parametrize("form", FORMS)
def test_config_and_artefact_have_one_ledger(toy_model, compile_to, capsys, form) -> None:
    options = {"max_batch": 4, "max_seq_len": 64, **FORMS[form]}
    shown = {"plan": True, "advise_pages": False, "as_json": True}
    show_advice(shown, CompileOptions(str(toy_model.folder), **options))
    before = json.loads(capsys.readouterr().out)["plan"]
    step = "64" if form == "gears" else "512"
    result = CliRunner().invoke(
        run_om,
        [
            *("plan", str(compile_to(toy_model.folder, **options)), "--json"),
            *("--max-batch", "4", "--max-batch-tokens", step),
        ],
    )
    assert result.exit_code == 0, result.output
    after = json.loads(result.stdout)["plan"]
    for key in ("token_bytes", "page_bytes", "pages_full", "contiguous_kv_bytes"):
        assert after[key] == before[key], key
    rows = [{row["name"]: row["bytes"] for row in plan["rows"]} for plan in (before, after)]
    constants = sum(rows[0][name] for name in before["constants"])
    assert constants <= rows[1]["weights"] <= constants + SHAPES
    assert rows[1]["workspace"] == rows[0]["workspace"]


@pytest.mark.parametrize("target", ["Ascend910B3", "Ascend310B4"])
def test_a_chips_artefact_knows_memory_and_workspace(
    toy_model, tmp_path, monkeypatch, target
) -> None:
    machine = prepare(tmp_path, monkeypatch)
    out = machine.root / "chip"
    shapes = ("--target", target, "--max-batch", 3, "--max-batch-tokens", 24, "--memory", 8)
    compiled = machine.run(toy_model.folder, *shapes, "--cann", machine.cann("9.1.0"), "-o", out)
    assert compiled.exit_code == 0, compiled.output
    planned = json.loads(machine.run(toy_model.folder, *shapes, "--plan", "--json").stdout)["plan"]
    result = CliRunner().invoke(run_om, ["plan", str(out), "--json"])
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)["plan"]
    assert plan["memory_bytes"] == 8 * 1024**3 == planned["memory_bytes"]
    assert plan["target"] == target
    for key in ("pages", "pages_full", "page_bytes", "fits"):
        assert plan[key] == planned[key], key
    (workspace,) = (row for row in plan["rows"] if row["name"] == "workspace")
    assert workspace["how"] == "as the artefact says"
    assert workspace["bytes"] > 0
