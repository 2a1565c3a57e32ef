"""Bad input to both commands, end to end: one message, the right code, nothing left behind."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from pagedom.compiler import cli, export
from pagedom.compiler.stages import Stages
from pagedom.runtime.cli import run_om

_exports: dict[Any, Any] = {}


def compile_model(*args: object) -> Result:
    return CliRunner().invoke(cli.command, [str(arg) for arg in args])


def run(*args: object) -> Result:
    return CliRunner().invoke(run_om, [str(arg) for arg in args])


def assert_refused(result: Result, *words: str, code: int = 1) -> None:
    assert result.exit_code == code, result.output
    assert result.stderr.count("Error: ") == 1, result.stderr
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr
    assert result.stdout == ""


@pytest.fixture(autouse=True)
def _one_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Export each configuration once: what is tested here comes before and after it."""
    real = export.export_onnx

    def cached(config: Any, options: Any, progress: Any = None) -> Any:
        if (config, options) not in _exports:
            _exports[config, options] = real(config, options, progress)
        return _exports[config, options].clone()

    monkeypatch.setattr(export, "export_onnx", cached)


@pytest.fixture
def model(toy_model: Any, tmp_path: Path) -> Path:
    return shutil.copytree(toy_model.folder, tmp_path / "model")


@pytest.fixture
def artefact(compile_to: Callable[..., Path], toy_model: Any, tmp_path: Path) -> Path:
    return shutil.copytree(compile_to(toy_model.folder), tmp_path / "artefact")


def change_config(model: Path, **changes: Any) -> None:
    values = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(values | changes))


def break_file(change: Callable[[bytes], bytes], name: str = "model.safetensors") -> Any:
    def fault(model: Path) -> None:
        (model / name).write_bytes(change((model / name).read_bytes()))

    return fault


CHECKPOINTS = {
    "type": (lambda m: change_config(m, model_type="gpt_bigcode"), "'gpt_bigcode'; allowed are"),
    "rope": (lambda m: change_config(m, rope_scaling={"rope_type": "foo"}), "rope_type is 'foo'"),
    "sizes": (lambda m: change_config(m, hidden_size="256"), "hidden_size is '256'"),
    "layers": (lambda m: change_config(m, num_hidden_layers=-1), "num_hidden_layers is -1"),
    "json": (lambda m: (m / "config.json").write_text("{"), "config.json: is not readable JSON"),
    "no config": (lambda m: (m / "config.json").unlink(), "has no config.json"),
    "no weights": (lambda m: (m / "model.safetensors").unlink(), "no model.safetensors"),
    "empty": (break_file(lambda data: b""), "the file is empty"),
    "cut": (break_file(lambda data: data[:-100]), "(100 missing)"),
    "zeros": (break_file(lambda data: bytes(8) + data[8:]), "declare a header of 0 bytes"),
    "huge": (break_file(lambda data: (1 << 60).to_bytes(8, "little") + data[8:]), str(1 << 60)),
    "no tokenizer": (lambda m: (m / "tokenizer.json").unlink(), "has no tokenizer.json"),
    "tokenizer": (break_file(lambda data: b"{}", "tokenizer.json"), "tokenizer"),
    "decoder": (
        break_file(lambda data: data.replace(b'"Fuse"', b'"WordPiece"'), "tokenizer.json"),
        "tokenizer",
    ),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
@pytest.mark.parametrize("emit", ["om", "onnx"])
def test_a_bad_checkpoint(model: Path, tmp_path: Path, name: str, emit: str) -> None:
    fault, words = CHECKPOINTS[name]
    fault(model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "export_onnx", lambda *_: pytest.fail("known before the export"))
        result = compile_model(model, "-o", tmp_path / "new" / "out", "--emit", emit)
    assert result.exit_code == 1
    assert result.stderr.count("Error: ") == 1
    assert words in result.stderr
    assert os.listdir(tmp_path) == ["model"]


def test_weights_that_are_not_finite(model: Path, tmp_path: Path, toy: Any, toy_model: Any) -> None:
    for name in ("model.norm.weight", "model.embed_tokens.weight"):  # inline and external in ONNX
        nans = np.full_like(toy_model.arrays[name], np.nan)
        toy.write_folder(model, toy_model.values, {**toy_model.arrays, name: nans})
        for emit in ("om", "onnx"):
            result = compile_model(model, "-o", tmp_path / "out", "--emit", emit)
            assert result.exit_code == 1
            assert f"tensor {name}: element 0 is nan" in result.stderr
            assert os.listdir(tmp_path) == ["model"]


def test_a_gguf_that_is_no_language_model(tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "clip.gguf"
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_tensor("v.patch_embd.weight", np.ones((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_refused(compile_model(path), "general.architecture is 'clip'; allowed are llama, qwen2")
    path.write_bytes(path.read_bytes()[:40])
    assert_refused(compile_model(path), "truncated")
    path.write_bytes(b"GIF89a" * 9)
    assert_refused(compile_model(path), "not with GGUF")


@pytest.mark.parametrize("emit", ["om", "onnx"])
def test_an_output_with_spaces_and_chinese_letters(model: Path, tmp_path: Path, emit: str) -> None:
    output = tmp_path / "a b" / "模型 [/x] 'q'"
    for _ in range(2):  # the second replaces the first
        result = compile_model(model, "-o", output, "--emit", emit)
        assert result.exit_code == 0, result.stderr
        assert "模型 [/x]" in result.stderr
        assert os.listdir(output.parent) == [output.name]
    other = compile_model(model, "-o", output, "--emit", "onnx" if emit == "om" else "om")
    assert other.exit_code == 1
    assert "choose another output" in other.stderr
    if emit == "onnx":
        import onnxruntime

        onnxruntime.InferenceSession(str(output / "model.onnx"))
    else:
        assert run("generate", output, "-p", "w1", "--max-tokens", 2).exit_code == 0


def test_foreign_files_are_never_touched(model: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "home"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years")
    (foreign / "model.onnx").write_text("somebody's")
    for emit in ("om", "onnx"):
        for output in (foreign, model, foreign / "thesis.txt", foreign / "thesis.txt" / "x"):
            result = compile_model(model, "-o", output, "--emit", emit)
            assert result.exit_code == 1
            assert result.stderr.count("Error: ") == 1
        ours = tmp_path / f"ours-{emit}"
        assert compile_model(model, "-o", ours, "--emit", emit).exit_code == 0
        (ours / "notes.txt").write_text("mine")
        result = compile_model(model, "-o", ours, "--emit", emit)
        assert "files that pagedom did not write (notes.txt)" in result.stderr
        assert (ours / "notes.txt").read_text() == "mine"
    assert sorted(os.listdir(foreign)) == ["model.onnx", "thesis.txt"]
    assert (foreign / "model.onnx").read_text() == "somebody's"


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("emit", ["om", "onnx"])
@pytest.mark.parametrize("nbytes", [100, 40_000, 1_000_000])
def test_a_disk_that_is_full(model: Path, tmp_path: Path, emit: str, nbytes: int) -> None:
    with largest_file(nbytes):
        result = compile_model(model, "-o", tmp_path / "new" / "out", "--emit", emit)
    assert result.exit_code == 1
    assert "out cannot be written (File too large): free space" in result.stderr
    assert os.listdir(tmp_path) == ["model"]


def test_too_little_space_is_seen_before_writing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5 << 20))
    for emit in ("om", "onnx"):
        result = compile_model(model, "-o", tmp_path / "out", "--emit", emit)
        assert "MiB and 5 MiB are free there" in result.stderr
        assert os.listdir(tmp_path) == ["model"]


STAGES = ["Load the compiler", "Trace and export to ONNX", "Lower to GE-IR"]
SHOWING = ["Write model.om", "Hash", "Write model.onnx"]  # the signal comes with the work shown


@pytest.mark.parametrize("stage", STAGES + SHOWING)
@pytest.mark.parametrize("existing", [False, True])
def test_ctrl_c_in_each_stage(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, existing: bool
) -> None:
    """The signal comes in the middle of a stage, twice, as from somebody in a hurry."""
    emit = "onnx" if "onnx" in stage else "om"
    output = tmp_path / "out"
    if existing:
        assert compile_model(model, "-o", output, "--emit", emit).exit_code == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    handler = signal.getsignal(signal.SIGINT)
    real = Stages.stage

    @contextmanager
    def stage_with_signal(self: Stages, name: str) -> Iterator[Any]:
        with real(self, name) as running:
            if name == stage:
                monkeypatch.setattr(running, "show", lambda *_: os.kill(os.getpid(), 2))
                if stage in STAGES:
                    os.kill(os.getpid(), 2)
            yield running

    monkeypatch.setattr(Stages, "stage", stage_with_signal)
    try:
        result = compile_model(model, "-o", output, "--emit", emit)
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert result.exit_code == 130, result.stderr
    assert result.stderr.endswith("Interrupted; nothing was changed.\n")
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before
    assert len(os.listdir(tmp_path)) == 1 + existing


def test_ctrl_c_on_the_real_command(model: Path, tmp_path: Path) -> None:
    code = "from pagedom.compiler.cli import main; main()"
    command = [sys.executable, "-c", code, str(model), "-o", str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = [process.stderr.readline()]
    while "Load the compiler" not in lines[-1] and lines[-1]:
        lines.append(process.stderr.readline())
    time.sleep(1.0)  # inside torch: its import, or its tracing
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    rest = process.communicate(timeout=60)[1]
    assert (process.returncode, rest) == (130, "Interrupted; nothing was changed.\n")
    assert os.listdir(tmp_path) == ["model"]
