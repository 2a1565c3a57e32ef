"""`run-om plan` and `--plan`: the ledger of an artefact is what its engine then allocates."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from formula_forms import write_artifact
from llama_configs import LLAMA_70B

from pagedom.compiler.cli import command as compile_model
from pagedom.runtime.artifact import read_manifest
from pagedom.runtime.artifact_memory import memory_facts, plan_artifact
from pagedom.runtime.cli import run_om
from pagedom.runtime.device import Device
from pagedom.runtime.engine import Engine
from pagedom.runtime.engine_options import EngineOptions
from pagedom.runtime.manifest import Manifest, write_manifest
from pagedom.runtime.memory_ledger import EXIT_NO_FIT, ledger

GIB = 1024**3
KINDS = ("plain", "gears", "rows", "rows gears")
PAGE_SIZE, NUM_PAGES = 32, 24


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("plan")
    return {
        kind: write_artifact(root / kind.replace(" ", "-"), kind, PAGE_SIZE, NUM_PAGES)
        for kind in KINDS
    }


@pytest.fixture
def manifest(artefacts) -> Manifest:
    return read_manifest(artefacts["plain"])


def run(*args: object) -> Result:
    return CliRunner().invoke(run_om, list(map(str, args)))


def plan_json(*args: object) -> dict:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["plan"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", ["paged", "contiguous"])
def test_the_ledger_is_what_the_engine_allocates(artefacts, monkeypatch, kind, cache) -> None:
    if cache == "contiguous" and "gears" in kind:
        pytest.skip("a compiled number of pages is not for full-length rows")
    taken: list[int] = []
    malloc = Device.malloc
    monkeypatch.setattr(
        Device, "malloc", lambda self, nbytes: taken.append(nbytes) or malloc(self, nbytes)
    )
    settings = {"max_batch": 3, "cache": cache, "executor": "oracle"}
    with Engine(artefacts[kind], **settings):
        pass
    plan = plan_artifact(read_manifest(artefacts[kind]), EngineOptions(**settings))
    cache = plan.row("KV pages").bytes + plan.row("null page").bytes
    steps = plan.row("step inputs").bytes + plan.row("step outputs").bytes
    buffers = [nbytes for nbytes in taken if nbytes == max(taken)]  # of the cache: all of one size
    assert sum(buffers) == cache
    others = sum(taken) - cache
    # ACL adds up to 63 bytes to each, and a model's shape buffer may be smaller than ACL's most.
    spare = 64 * len(taken) + 1100 * len(read_manifest(artefacts[kind]).gears)
    assert others <= steps <= others + spare


def test_pages_are_the_engines_own_choice(manifest) -> None:
    for options in (
        EngineOptions(),
        EngineOptions(max_batch=2),
        EngineOptions(num_pages=9),
        EngineOptions(kv_bytes=1 << 20),
        EngineOptions(cache="contiguous", max_batch=2),
    ):
        facts = memory_facts(manifest, options)
        assert facts.pages * facts.token_bytes * PAGE_SIZE == ledger(facts).row("KV pages").bytes
    assert memory_facts(manifest, EngineOptions(num_pages=9)).pages == 8
    page = ledger(memory_facts(manifest, EngineOptions())).page_bytes
    assert memory_facts(manifest, EngineOptions(kv_bytes=10 * page)).pages == 9


def test_weights_and_workspace_come_from_the_manifest(manifest) -> None:
    said = replace(manifest, memory={"weights": 7 * GIB, "activations_per_token": 1000})
    plan = plan_artifact(said, EngineOptions(max_batch_tokens=100), 64 * GIB)
    assert plan.row("weights").bytes == 7 * GIB
    assert plan.row("workspace").bytes == 100 * 1000
    measured = replace(said, memory={"weights": 7 * GIB, "workspace": 12345, "device": 32 * GIB})
    assert plan_artifact(measured, EngineOptions()).row("workspace").bytes == 12345
    silent = plan_artifact(replace(manifest, memory={}), EngineOptions())
    assert silent.row("weights").bytes == manifest.files["model.om"].bytes
    assert silent.row("weights").estimate
    assert "compile it again" in silent.row("workspace").how


def test_the_memory_is_the_devices_the_manifests_or_the_given(manifest) -> None:
    chip = replace(manifest, target="Ascend910B", soc="Ascend910B3", memory={"device": 64 * GIB})
    assert plan_artifact(chip, EngineOptions()).memory_bytes == 64 * GIB
    assert plan_artifact(chip, EngineOptions(), 32 * GIB).memory_bytes == 32 * GIB
    unknown = plan_artifact(replace(chip, memory={}), EngineOptions())
    assert (unknown.fits, unknown.capacity.paged_full) == (None, None)
    here = plan_artifact(manifest, EngineOptions())
    assert here.memory_bytes is None or here.memory_bytes > 2**28


def test_a_mean_length_says_how_many_sequences_fit(manifest, artefacts, tmp_path) -> None:
    page = ledger(memory_facts(manifest, EngineOptions())).page_bytes
    plan = plan_artifact(manifest, EngineOptions(), 200 * page, 33)
    fixed = plan.total_bytes - plan.row("KV pages").bytes
    assert plan.capacity.paged_mean == (int(200 * page * 0.9) - fixed) // page // 2  # 2 pages
    shown = plan_json("plan", artefacts["plain"], "--mean-length", 33)
    assert shown["capacity"]["mean_len"] == 33
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    chip = ("plan", tmp_path, "--target", "Ascend910B3", "--mean-length", 300, "--memory", 256)
    shown = plan_json(*chip)
    assert shown["capacity"]["mean_len"] == 300
    assert shown["capacity"]["paged_mean"] > 4 * shown["capacity"]["paged_full"]
    assert shown["pages"] == plan_json(*chip[:4], "--memory", 256)["pages"]  # compiled in


def number_after(text: str, flag: str) -> int:
    return int(text.split(f"{flag} ")[1].split(" ")[0])


def test_what_to_change_leads_to_plans_that_fit(manifest) -> None:
    wide = replace(manifest, memory={"weights": 0, "activations_per_token": 1 << 14}, max_batch=64)
    crowded = EngineOptions(max_batch=64, max_batch_tokens=1024, cache="contiguous")
    memory = 24 << 20
    plan = plan_artifact(wide, crowded, memory)
    assert plan.fits is False
    text = "\n".join(plan.advice)
    assert "--cache paged: total" in text
    assert "--dtype bfloat16" in text
    pages = number_after(text, "--num-pages")
    assert plan_artifact(wide, replace(crowded, num_pages=pages), memory).fits is True
    assert plan_artifact(wide, replace(crowded, num_pages=pages + 1), memory).fits is False
    paged = replace(crowded, cache="paged", max_batch=16)
    short = plan_artifact(wide, paged, 16 << 20)
    assert short.fits is False
    tokens = number_after("\n".join(short.advice), "--max-batch-tokens")
    assert tokens >= 16
    assert plan_artifact(wide, replace(paged, max_batch_tokens=tokens), 16 << 20).fits is True
    assert plan_artifact(wide, replace(paged, max_batch_tokens=tokens + 1), 16 << 20).fits is False


def test_a_smaller_batch_brings_a_smaller_pool_with_it(manifest) -> None:
    silent = replace(manifest, memory={"weights": 0, "workspace": 0})
    crowded = EngineOptions(max_batch=8, num_pages=200)
    needed = plan_artifact(silent, EngineOptions(max_batch=4)).total_bytes
    plan = plan_artifact(silent, crowded, int(needed / 0.9) + 64)
    batch = number_after("\n".join(plan.advice), "--max-batch")
    assert 4 <= batch < 8
    fitting = EngineOptions(max_batch=batch)
    assert plan_artifact(silent, fitting, int(needed / 0.9) + 64).fits is True


def test_where_nothing_fits_a_larger_device_is_all_that_is_proposed(manifest) -> None:
    heavy = replace(manifest, memory={"weights": GIB}, dtype="float16")
    plan = plan_artifact(heavy, EngineOptions(max_batch=8), 1 << 20)
    assert [line.split()[0] for line in plan.advice] == ["As", "Or"]


def test_compiled_pages_are_changed_by_compiling_again(artefacts) -> None:
    geared = replace(read_manifest(artefacts["gears"]), memory={"weights": 0, "workspace": 0})
    total = plan_artifact(geared, EngineOptions()).total_bytes
    plan = plan_artifact(geared, EngineOptions(), int(total * 0.8 / 0.9))
    text = "\n".join(plan.advice)
    assert "Compile again with --num-pages" in text
    assert "--max-batch-tokens" not in text  # a gear has its tokens whatever is asked for


def test_the_command_reads_the_manifest_alone(artefacts, tmp_path) -> None:
    whole = plan_json("plan", artefacts["plain"], "--max-batch", 2)
    write_manifest(tmp_path, read_manifest(artefacts["plain"]))
    assert plan_json("plan", tmp_path, "--max-batch", 2) == whole
    assert plan_json("plan", tmp_path / "pagedom.json", "--max-batch", 2) == whole
    given = plan_json("plan", tmp_path, "--kv-bytes", "1M", "--memory", "0.5")
    assert given["memory_bytes"] == GIB // 2
    assert (given["pages"] + 1) * given["page_bytes"] <= 1 << 20
    text = run("plan", tmp_path).stdout
    assert "head room" in text
    assert "sequences that fit: paged" in text


def test_a_checkpoint_has_the_ledger_of_compile_model(tmp_path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    options = ["--target", "Ascend910B3", "--max-batch", "16", "--max-seq-len", "4096"]
    wanted = CliRunner().invoke(compile_model, [str(file), "--plan", "--json", *options])
    for path in (file, tmp_path):
        result = run("plan", path, *options, "--json")
        assert result.exit_code == wanted.exit_code == EXIT_NO_FIT, result.output
        assert json.loads(result.stdout) == json.loads(wanted.stdout)
    assert "Weights in int4" in run("plan", file, *options).stdout


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["nowhere"], 2, "does not exist: give an artefact"),
        (["."], 2, "has neither pagedom.json nor config.json"),
        (["notes.txt"], 2, "is no .json or .gguf file"),
        (["plain", "--target", "host", "--page-size", "16"], 2, "--target, --page-size: decided"),
        (["config.json", "--kv-bytes", "1G"], 2, "--kv-bytes: an engine's"),
        (["plain", "--num-pages", "9", "--kv-bytes", "1G"], 2, "give one of them"),
        (["plain", "--max-batch", "3", "--max-batch-tokens", "2"], 2, "at least --max-batch (3)"),
        (["good.json", "--target", "host", "--max-batch-tokens", "2"], 2, "has no effect"),
        (
            ["good.json", "--target", "Ascend910B3", "--max-batch", "3", "--max-batch-tokens", "2"],
            2,
            "at least --max-batch (3)",
        ),
        (["plain", "--max-batch", "9"], 1, "compiled for at most"),
        (["plain", "--kv-bytes", "10"], 1, "at least"),
        (["plain", "--mean-length", "9000"], 1, "at most"),
        (["good.json", "--mean-length", "9000"], 1, "at most max_seq_len 2048"),
        (["good.json", "--target", "Ascend910B9"], 1, "Did you mean"),
        (["config.json"], 1, "model_type"),
        (["broken"], 1, "the manifest"),
    ],
)
def test_refusals(artefacts, tmp_path, monkeypatch, args, code, words) -> None:
    (tmp_path / "notes.txt").write_text("?", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "unheard"}', encoding="utf-8")
    (tmp_path / "good.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    (tmp_path / "plain").symlink_to(artefacts["plain"])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "pagedom.json").write_text('{"schema": 1}', encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    place = empty if args == ["."] else tmp_path
    monkeypatch.chdir(place)
    done = subprocess.run(
        [sys.executable, "-m", "pagedom.runtime.cli", "plan", *args], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_the_flag_shows_the_engine_that_would_run_and_loads_nothing(artefacts, monkeypatch) -> None:
    monkeypatch.setattr(Engine, "__init__", lambda *args, **settings: pytest.fail("it was loaded"))
    folder = artefacts["plain"]
    facts = read_manifest(folder)

    def pages(**settings: object) -> int:
        return memory_facts(facts, EngineOptions(**settings)).pages

    assert plan_json("generate", folder, "--plan")["pages"] == pages()
    two = plan_json("generate", folder, "--plan", "-p", "a", "-p", "b")
    assert two["pages"] == pages(max_batch=2)
    assert plan_json("generate", folder, "--plan", "--num-pages", 7)["pages"] == 6
    assert "KV pages" in run("chat", folder, "--plan", "--max-batch", 3).stdout
    asked = ("bench", folder, "--plan", "--requests", 2)
    assert plan_json(*asked)["pages"] == pages(max_batch=2)
    both = run(*asked, "--vs-padded", "--json").stdout.splitlines()
    found = [json.loads(line)["plan"]["pages"] for line in both]
    assert found == [pages(max_batch=2), pages(max_batch=2, cache="contiguous")]


@pytest.mark.parametrize("show", ["--json", None])
def test_the_exit_code_says_whether_it_fits(artefacts, tmp_path, show) -> None:
    """0 also where the memory is not known: a script that wants to know gives --memory."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    more = [show] if show else []
    chip = ["--target", "Ascend910B3", "--max-seq-len", "4096", "--max-batch", "16"]
    unknown = ["--target", "Ascend310B4", "--dtype", "float16"]
    for args, code, words in (
        ([*chip], EXIT_NO_FIT, "does not fit: it needs 151.57 GiB"),
        ([*chip, "--memory", "400"], 0, "fits: it needs 151.57 GiB"),
        (unknown, 0, "whether that fits is not known"),
    ):
        for result in (
            run("plan", config, *args, *more),
            CliRunner().invoke(compile_model, [str(config), "--plan", *args, *more]),
        ):
            assert result.exit_code == code, result.output
            assert show or words in " ".join(result.stdout.split()[:20])
    folder = artefacts["plain"]
    assert run("plan", folder, "--memory", "0.001", *more).exit_code == EXIT_NO_FIT
    short = ("--num-pages", "60000000", *more)
    assert run("generate", folder, "--plan", *short).exit_code == EXIT_NO_FIT
    assert run("bench", folder, "--plan", *short, "--requests", "1").exit_code == EXIT_NO_FIT
    if not show:
        assert run("chat", folder, "--plan", *short).exit_code == EXIT_NO_FIT


def test_compile_model_takes_a_mean_length_too(tmp_path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    asked = [str(config), "--plan", "--json", "--target", "Ascend910B3", "--mean-length", "33"]
    shown = json.loads(CliRunner().invoke(compile_model, asked).stdout)["plan"]
    assert shown["capacity"]["mean_len"] == 33
    wrong = CliRunner().invoke(compile_model, [str(config), "--mean-length", "33"])
    assert (wrong.exit_code, "--mean-length is read with --plan" in wrong.stderr) == (2, True)


def test_a_missing_extra_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "pagedom.compiler.config_plan", None)
    result = run("plan", tmp_path / "model.gguf")
    assert result.exit_code == 1
    assert "reading model.gguf needs the extra: pip install 'pagedom[compile]'" in result.stderr


@pytest.mark.parametrize("kind", ["artefact", "config"])
def test_fast_small_and_without_heavy_imports(artefacts, tmp_path, kind) -> None:
    args = [str(artefacts["plain"])]
    if kind == "config":
        (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
        args = [str(tmp_path), "--target", "Ascend910B1", "--memory", "999"]
    code = """
import json, sys, time
begin = time.process_time()  # of one thread: what else the machine does is not counted
from pagedom.runtime.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
seconds = time.process_time() - begin
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
peak = int(status['VmHWM'].split()[0]) // 1024
heavy = {"torch", "onnx", "onnx_ir", "onnxscript", "openvino", "safetensors"} & set(sys.modules)
ours = [n for n in sys.modules if n.startswith(("pagedom.compiler", "pagedom.models"))]
print(json.dumps([seconds, peak, sorted(heavy), len(ours)]), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", *args],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    seconds, peak_mib, heavy, ours = json.loads(done.stderr.splitlines()[-1])
    assert heavy == []
    assert bool(ours) == (kind == "config")
    assert peak_mib < 100
    assert seconds < 1.0
