"""compile-model: usage, refusals before any work, streams, interrupts; nothing is compiled here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pagedom.compiler import cli
from pagedom.compiler.output_place import OutputError, explaining, require_space
from pagedom.compiler.request import CompileOptions, default_output
from pagedom.compiler.stages import Stages
from pagedom.compiler.target_resolve import resolve_target
from pagedom.runtime.interruption import Interruption


def invoke(*args: object) -> Result:
    return CliRunner().invoke(cli.command, [str(arg) for arg in args])


@pytest.fixture
def model(tmp_path: Path, toy: Any) -> Path:
    """Return a sound checkpoint without a tokenizer."""
    values = toy.config(hidden_size=256)
    return toy.write_folder(tmp_path / "model", values, toy.tensors(values))


def test_help_teaches() -> None:
    text = invoke("--help").output
    for word in ("Examples:", "run-om", "--emit onnx", "--plan", "Exit codes:", "130", "smollm2"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 100
    narrow = CliRunner().invoke(cli.command, ["--help"], terminal_width=80).output
    assert max(map(len, narrow.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "give a MODEL"),
        ([""], "give a MODEL"),
        (["m", "--page-sise", "3"], "'--page-size'"),
        (["m", "--emitt", "onnx"], "Did you mean '--emit'"),
        (["m", "n"], "extra argument (n)"),
        (["m", "--dtype", "fp16"], "'float32', 'bfloat16', 'float16'"),
        (["m", "--page-size", "0"], "0 is not in the range x>=1"),
        (["m", "--page-size", "-32"], "-32 is not in the range"),
        (["m", "--max-seq-len", "-1"], "-1 is not in the range"),
        (["m", "--max-seq-len", "many"], "'many' is not a valid integer"),
        (["m", "--max-batch", "0"], "0 is not in the range"),
        (["m", "--max-batch", 10**20], "is not in the range 1<=x<=65536"),
        (["m", "--lengths", "nowhere.txt"], "'nowhere.txt' does not exist"),
        (["m", "--plan", "--list-weights"], "--plan and --list-weights"),
        (["m", "--capabilities", "--advise-pages"], "--advise-pages and --capabilities"),
    ],
)
def test_misuse_is_explained(args: list[object], words: str) -> None:
    result = invoke(*args)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_lengths_without_its_reader_is_not_ignored(model: Path, tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("3\n")
    for more in ([], ["--plan"]):
        result = invoke(model, "--lengths", tmp_path / "lengths.txt", *more)
        assert result.exit_code == 2
        assert "--advise-pages" in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--page-size", 40], "Nearest legal: 32, 64"),
        (["--max-seq-len", 129], "--max-seq-len 129 is outside 1 to 128"),
        (["--max-seq-len", 10**20], "outside 1 to 128"),
        (["--target", "Ascend910B9"], "Did you mean Ascend910B"),
        (["--target", "auto"], "--target auto found no card"),
    ],
)
@pytest.mark.parametrize("stop", [[], ["--plan"]])
def test_a_plan_refuses_what_a_compilation_refuses(
    model: Path, tmp_path: Path, args: list[object], words: str, stop: list[str]
) -> None:
    result = invoke(model, "-o", tmp_path / "out", *args, *stop)
    assert result.exit_code == 1
    assert result.stderr.count("Error: ") == 1
    assert words in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["model"]


def test_rope_tables_beyond_memory_are_refused(tmp_path: Path, toy: Any) -> None:
    values = toy.config(hidden_size=256, max_position_embeddings=10**9)
    model = toy.write_folder(tmp_path / "model", values, toy.tensors(values))
    result = invoke(model, "--max-seq-len", 10**9)
    assert result.exit_code == 1
    assert "is above 4194304, the most for heads of 64" in result.stderr
    assert invoke(model, "--plan").exit_code == 0  # the default stays small


def test_a_chip_without_its_compiler_gets_no_model_of_the_host(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = invoke(model, "-o", tmp_path / "out", "--target", "Ascend910B3")
    assert result.exit_code == 1
    assert result.stderr.count("Error: ") == 1
    assert not (tmp_path / "out").exists()
    assert invoke(model, "--target", "Ascend910B3", "--plan").exit_code == 0


def test_what_a_bundle_decided_cannot_be_changed_by_options(tmp_path: Path) -> None:
    result = invoke("--from-om", tmp_path, "--dtype", "float16", "--gears", "1,1", "--json")
    assert result.exit_code == 2
    assert "--dtype, --gears with --from-om" in result.stderr


def test_lengths_with_junk_name_the_line(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    for junk in ("-4", "1e3", "twelve", "0", "9" * 30):
        path.write_text(f"# header\n12\n{junk}\n")
        result = invoke(model, "--advise-pages", "--lengths", path)
        assert result.exit_code == 1
        assert f"lengths.txt, line 3: '{junk}' is no length" in result.stderr
    path.write_bytes(bytes(range(128, 256)))
    said = invoke(model, "--advise-pages", "--lengths", path).stderr
    assert "cannot read lengths" in said
    assert "it is no UTF-8 text (byte 0); write one number of tokens a line" in said


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "is not readable JSON"), ("[1]", "holds list, an object is due"), (None, "config.json")],
)
def test_a_plan_of_a_broken_configuration(tmp_path: Path, content: str, words: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    if content is not None:
        (folder / "config.json").write_text(content)
    result = invoke(folder, "--plan")
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr


def test_json_is_alone_on_stdout(model: Path) -> None:
    for args in (
        [model, "--plan", "--json"],
        [model, "--advise-pages", "--plan", "--json"],
        [model, "--list-weights", "--json"],
        ["--capabilities", "--json"],
    ):
        result = invoke(*args)
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)
        assert result.stderr == ""


def test_list_weights_accounts_for_every_tensor(tmp_path: Path, toy: Any) -> None:
    values = toy.config()
    arrays = toy.tensors(values)
    arrays["model.layers.0.self_attn.q_proj.bias"] = arrays["model.norm.weight"]
    model = toy.write_folder(tmp_path / "model", values, arrays)
    lines = invoke(model, "--list-weights").stdout.splitlines()
    assert len(lines) == len(arrays)
    unused = [line for line in lines if line.startswith("unused")]
    assert len(unused) == 1
    assert "self_attn.q_proj.bias" in unused[0]
    assert "attention_bias" in unused[0]


def test_the_default_output_is_never_the_checkpoint(model: Path) -> None:
    host, chip = resolve_target("host"), resolve_target("Ascend910B3")
    assert default_output(CompileOptions(str(model)), host) == Path("model-host")
    assert default_output(CompileOptions("x/y.gguf"), chip) == Path("y-Ascend910B3")
    assert default_output(CompileOptions("demo", emit="onnx"), host) == Path("demo-onnx")
    assert default_output(CompileOptions(f"{model}/../model/."), host) == Path("model-host")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError("Unable to allocate"), "MemoryError: Unable to allocate (--debug shows"),
        (OSError(28, "No space left on device"), "cannot write: No space left on device"),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied"),
        (ModuleNotFoundError("No module named 'torch'"), "pip install 'pagedom[compile]'"),
        (ModuleNotFoundError("No module named 'pagedom.x'", name="pagedom.x"), "--debug shows"),
        (KeyError("layers"), "KeyError: 'layers' (--debug shows"),
    ],
)
def test_every_error_is_one_message(
    model: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, text: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "_list_weights", fail)
    result = invoke(model, "--list-weights")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    debugged = invoke(model, "--list-weights", "--debug")
    assert debugged.exception is error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_a_library_wraps_or_drops_still_counts(
    model: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    before = signal.getsignal(signal.SIGINT)

    def wrap(*_: object) -> None:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt as error:
            raise RuntimeError("the exporter failed") from error

    def drop(_: object, interruption: Any) -> None:
        with Stages(check=interruption.check).stage("work"):
            try:
                os.kill(os.getpid(), number)
            except KeyboardInterrupt:
                os.kill(os.getpid(), number)  # impatience breaks nothing
        pytest.fail("the stage did not notice")

    try:
        for fault in (wrap, drop):
            monkeypatch.setattr(cli, "_compile", fault)
            result = invoke(model)
            assert (result.exit_code, result.stderr) == (
                code,
                "Interrupted; nothing was changed.\n",
            )
            signal.signal(number, signal.default_int_handler)
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_an_impatient_second_signal_does_not_break_the_clean_up() -> None:
    with Interruption() as interruption:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        try:
            os.kill(os.getpid(), signal.SIGINT)  # within two seconds: nothing happens
        except KeyboardInterrupt:
            pytest.fail("the second Ctrl-C got through")
        assert interruption.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            interruption.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_disks_refusals_name_the_output(tmp_path: Path) -> None:
    output = tmp_path / "sub" / "out"
    beside = str(tmp_path / "sub" / "out.tmp-1-ab" / "model.om")
    for error in (
        OSError(28, "full"),
        OSError(30, "read-only", beside),
        OSError(17, "is there", str(tmp_path)),
    ):
        with pytest.raises(OutputError, match=r"sub/out cannot be written \("), explaining(output):
            raise error
    with pytest.raises(PermissionError), explaining(output):  # not about the output
        raise PermissionError(13, "Permission denied", "/models/tokenizer.json")
    with pytest.raises(OutputError, match=r"out needs \d+ MiB and \d+ MiB are free"):
        require_space(tmp_path, output, 1 << 60)
    require_space(tmp_path, output, 1)


def test_stages_leave_no_empty_lines() -> None:
    import io

    from rich.console import Console

    for terminal in (False, True):
        text = io.StringIO()
        stages = Stages(Console(file=text, force_terminal=terminal, no_color=True, width=80))
        with stages.stage("Write [/x]") as stage:
            stage.show(1, 2)
            stage.note = "[bold] 3 kB"
        lines = text.getvalue().splitlines()
        assert "✓ Write [/x]" in lines[-1]
        assert "[bold] 3 kB" in lines[-1]
        assert terminal or len(lines) == 1


def test_a_reader_that_goes_away_ends_it_quietly(model: Path) -> None:
    code = "from pagedom.compiler.cli import main; main()"
    command = [sys.executable, "-c", code, str(model), "--list-weights"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("args", [["--help"], ["--capabilities", "--json"]])
def test_a_full_disk_behind_stdout(args: list[str]) -> None:
    code = "from pagedom.compiler.cli import main; main()"
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", code, *args]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: cannot write: No space left on device\n"
