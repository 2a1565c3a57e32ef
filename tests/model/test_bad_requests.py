"""Bad artefacts and bad requests to `run-om` and the Engine: one message, neighbours unharmed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from closed_form import ClosedFormBackend

from pagedom import Engine, SamplingParams
from pagedom.runtime.cli import run_om
from pagedom.runtime.request import RequestError
from pagedom.runtime.sampling_params import SamplingError


def run(*args: object) -> Result:
    return CliRunner().invoke(run_om, [str(arg) for arg in args])


@pytest.fixture
def artefact(compile_to: Callable[..., Path], toy_model: Any, tmp_path: Path) -> Path:
    """Return an artefact of the toy model for sequences of 128 tokens, to be damaged at will."""
    return shutil.copytree(compile_to(toy_model.folder), tmp_path / "artefact")


def change_manifest(artefact: Path, **changes: Any) -> None:
    values = json.loads((artefact / "pagedom.json").read_text())
    (artefact / "pagedom.json").write_text(json.dumps(values | changes))


def change_vocabulary(artefact: Path) -> None:
    values = json.loads((artefact / "pagedom.json").read_text())
    change_manifest(artefact, model=values["model"] | {"vocab_size": 49})


def flip(artefact: Path, offset: int) -> None:
    data = bytearray((artefact / "model.om").read_bytes())
    data[offset] ^= 0xFF
    (artefact / "model.om").write_bytes(data)


ARTEFACTS = {
    "no manifest": (lambda a: (a / "pagedom.json").unlink(), "it has no pagedom.json"),
    "no JSON": (lambda a: (a / "pagedom.json").write_text("{"), "not a JSON document"),
    "schema": (lambda a: change_manifest(a, schema=99), "schema version 99, this pagedom reads"),
    "missing": (lambda a: (a / "model.om").unlink(), "model.om is missing"),
    "tokenizer": (lambda a: (a / "tokenizer.json").unlink(), "tokenizer.json is missing"),
    "cut": (lambda a: (a / "model.om").write_bytes(b"IMOD"), "model.om has 4 bytes, the manifest"),
    "magic": (lambda a: flip(a, 0), "wrong magic"),
    "page size of the oracle": (lambda a: change_manifest(a, page_size=48), "--executor oracle"),
    "page size": (lambda a: change_manifest(a, page_size=64), "key_cache.0"),
    "batch": (lambda a: change_manifest(a, max_batch=-1), "max_batch must be at least 1, is -1"),
    "target": (
        lambda a: change_manifest(a, target="Ascend910B3"),
        "was compiled for Ascend910B3 and runs on CANN only",
    ),
    "vocabulary": (change_vocabulary, "rows of 48, the manifest's vocabulary has 49"),
}


@pytest.mark.parametrize("name", ARTEFACTS)
def test_a_bad_artefact(artefact: Path, name: str) -> None:
    fault, words = ARTEFACTS[name]
    fault(artefact)
    for args in (("generate", artefact, "-p", "w1"), ("bench", artefact)):
        result = run(*args)
        assert result.exit_code == 1
        assert result.stderr.count("Error: ") == 1
        assert words in result.stderr
        assert result.stdout == ""
    with pytest.raises(Exception, match=words):
        Engine(artefact)


def test_a_changed_byte_is_found_by_verify(artefact: Path) -> None:
    flip(artefact, -2000)
    result = run("verify", artefact)
    assert result.exit_code == 1
    assert "SHA-256" in result.stdout


REQUESTS = {
    "empty": (["-p", ""], "the prompt has no tokens"),
    "longer than the model": (["-p", "w1 " * 128], "128 tokens", "at most 127"),
    "longer than the pool": (["-p", "w1 " * 60, "--num-pages", 2], "60 tokens", "holds 32"),
    "too many pages": (["-p", "w1", "--num-pages", 10**11], "numbered in 32 bits"),
    "more pages than memory": (["-p", "w1", "--num-pages", 10**7], "are free on the device"),
    "no bytes": (["-p", "w1", "--kv-bytes", "1"], "at least 131072 are needed"),
    "too many bytes": (["-p", "w1", "--kv-bytes", "99999T"], "numbered in 32 bits"),
    "batch": (["-p", "w1", "--max-batch", 65], "compiled for at most 64 sequences"),
    "recording": (["-p", "w1", "--record", "/nowhere/at/all"], "/nowhere/at/all: No such file"),
}
USAGE = {
    "max_tokens 0": (["--max-tokens", 0], "max_tokens is 0: it must be an integer from 1"),
    "max_tokens -1": (["--max-tokens", -1], "max_tokens is -1"),
    "temperature": (["--temperature", "nan"], "temperature is nan"),
    "cold": (["--temperature", "-0.5"], "temperature is -0.5"),
    "top_p": (["--top-p", 0], "top_p is 0.0: it must be a number in (0, 1]"),
    "top_k": (["--top-k", -1], "top_k is -1"),
    "min_p": (["--min-p", 1], "min_p is 1.0"),
    "seed": (["--seed", 10**30], "seed is 1000"),
    "stop": (["--stop", ""], "empty string"),
    "both": (["--num-pages", 3, "--kv-bytes", "1M"], "give one of them"),
    "pages": (["--num-pages", -3], "-3 is not in the range"),
    "null page": (["--num-pages", 1], "1 is not in the range"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_that_cannot_be_served(artefact: Path, name: str) -> None:
    args, *words = REQUESTS[name]
    result = run("generate", artefact, *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("Error: ") == 1
    for word in words:
        assert word in result.stderr


@pytest.mark.parametrize("name", USAGE)
def test_a_value_that_means_nothing(artefact: Path, name: str) -> None:
    args, words = USAGE[name]
    result = run("generate", artefact, "-p", "w1", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_neighbours_of_bad_requests_are_unharmed(artefact: Path, tmp_path: Path) -> None:
    prompts = ["w1 w2", [48], [-1], [10**30], [], "w3 " * 200, [5, 6]]
    (tmp_path / "prompts.json").write_text(json.dumps(prompts))
    args = ("--file", tmp_path / "prompts.json", "--json", "--max-tokens", 4, "--num-pages", 5)
    result = run("generate", artefact, *args)
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 1
    assert ["error" in record for record in records] == [False, *[True] * 5, False]
    for index, token in ((1, 48), (2, -1)):
        assert f"token {token} at place 0 of the prompt" in records[index]["error"]
    assert "vocabulary of 48" in records[3]["error"]
    alone = run("generate", artefact, "-p", "w1 w2", "--json", "--max-tokens", 4)
    assert json.loads(alone.stdout)["token_ids"] == records[0]["token_ids"]


@pytest.mark.parametrize("content", [b"\xff\xfe", b'["a", 3]', b"[[1, 2.5]]", b"[[true]]", b"["])
def test_a_file_that_holds_no_prompts(artefact: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "prompts").write_bytes(content)
    result = run("generate", artefact, "--file", tmp_path / "prompts")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "prompts" in result.stderr
    if content == b'["a", 3]':
        assert "prompt 2 of " in result.stderr  # counted as the answers are: [2/2]


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"A": []}', '{"A": [{"prompt": [1], "n_out": 0}]}']
)
def test_a_file_that_holds_no_workload(artefact: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "workload.json").write_text(content)
    result = run("bench", artefact, "--workload", tmp_path / "workload.json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "workload.json" in result.stderr
    assert "Error (" not in result.stderr


def test_a_recording_on_a_full_disk_costs_no_answer(artefact: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    result = run("generate", artefact, "-p", "w1", "--record", "/dev/full")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "/dev/full: No space left on device" in result.stderr


@pytest.mark.parametrize(
    "settings",
    [{"max_batch": 0}, {"num_pages": -1}, {"kv_bytes": 0}, {"max_batch_tokens": 1.5}],
    ids=str,
)
def test_engine_settings_are_checked(artefact: Path, settings: dict[str, Any]) -> None:
    name = next(iter(settings))
    with pytest.raises(ValueError, match=f"{name} is .*: it must be an integer of at least 1"):
        Engine(artefact, **settings)
    with pytest.raises(TypeError, match=f"unknown engine setting '{name}x'; did you mean '{name}'"):
        Engine(artefact, **{f"{name}x": 1})


def test_the_engine_refuses_and_goes_on(artefact: Path) -> None:
    params = SamplingParams(max_tokens=3)
    with Engine(artefact, checked=True) as engine:
        wanted = engine.generate([[1, 2, 3]], params)[0].token_ids
        for prompt in ([], "", [48], [1 << 40], [1.5], [[1, 2]], list(range(40)) * 5):
            with pytest.raises(RequestError):
                engine.submit(prompt, params)
        with pytest.raises(RequestError):
            engine.generate([[1, 2, 3], [99]], params)
        with pytest.raises(ValueError, match="2 prompts but 1 sampling"):
            engine.generate([[1], [2]], [params])
        assert engine.generate([[1, 2, 3]], params)[0].token_ids == wanted
        assert engine.statistics().pool.high_water <= 2
    for wrong in ({"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_k": 1.5}):
        with pytest.raises(SamplingError, match=next(iter(wrong))):
            SamplingParams(**wrong)


def test_ctrl_c_while_a_model_loads_waits_for_the_engines_thread() -> None:
    """A library that is still loading when Python ends aborts the process."""

    class SlowBackend(ClosedFormBackend):
        def open(self, *args: Any) -> Any:
            time.sleep(0.5)
            return super().open(*args)

    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        Engine(SlowBackend(4, 64))
    assert "pagedom-engine" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("seconds", [0.02, 0.15, 0.4])
def test_ctrl_c_on_the_real_command(artefact: Path, seconds: float) -> None:
    code = "import sys; from pagedom.runtime.cli import main; sys.stderr.write('in\\n'); main()"
    words = ["generate", str(artefact), "--file", "-", "--ignore-eos", "--max-tokens", "120"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("w1\n" * 400)
    process.stdin.close()
    process.stdin = None
    assert process.stderr is not None
    assert process.stderr.readline() == "in\n"
    time.sleep(seconds)
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.03)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "terminate" not in errors
