"""Every option that was given is read, or refused: no mode of compile-model ignores one."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result

from pagedom.compiler import cli
from pagedom.compiler.option_modes import (
    ATC,
    CHIP,
    CHIP_ONNX,
    HOST,
    HOST_ONNX,
    READERS,
    STOPPING,
)

A2 = ("--target", "Ascend910B3")
# A command line of each mode; "m" is no model, so none goes far.
MODES = {
    HOST: ("m",),
    CHIP: ("m", *A2),
    ATC: ("m", *A2, "--emit", "atc"),
    HOST_ONNX: ("m", "--emit", "onnx"),
    CHIP_ONNX: ("m", *A2, "--emit", "onnx"),
    "plan": ("m", "--plan"),
    "advise_pages": ("m", "--advise-pages"),
    "list_weights": ("m", "--list-weights"),
    "capabilities": ("--capabilities",),
    "build_plugin": ("--build-plugin",),
    "from_om": ("--from-om", "."),
}
PARAMS = {param.name: param for param in cli.command.params if param.expose_value}
DECIDE = ("model", "target", "emit", *STOPPING)  # they make the mode


def invoke(*args: object) -> Result:
    return CliRunner().invoke(cli.command, [str(arg) for arg in args])


def given(param: click.Parameter, folder: object) -> list[str]:
    """Return an option with a value that is legal by itself."""
    flag = param.opts[-1]
    if isinstance(param, click.Option) and param.is_flag:
        return [flag]
    kind = param.type
    if isinstance(kind, click.Choice):
        return [flag, str(kind.choices[0])]
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        return [flag, str(max(int(kind.min or 0), 1))]
    if isinstance(kind, click.Path) and kind.exists:
        return [flag, str(folder)]
    return [flag, "8,4"]


def test_every_option_has_its_readers() -> None:
    assert set(READERS) == set(PARAMS)
    assert {mode for modes in READERS.values() for mode in modes} == set(MODES)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(set(PARAMS) - set(DECIDE)))
def test_an_option_without_effect_is_refused(tmp_path, monkeypatch, mode: str, name: str) -> None:
    """Whatever stops a command line later, it is another error than this one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_perform", lambda *_: None)
    file = tmp_path / "file"
    file.write_text("1\n")
    result = invoke(*MODES[mode], *given(PARAMS[name], file))
    active = {mode, HOST} if mode in ("plan", "advise_pages") else {mode}
    is_read = bool(active & set(READERS[name]))
    assert (f"{PARAMS[name].opts[-1]} with " in result.output) is not is_read
    assert result.exit_code == (0 if is_read else 2), result.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["m", *A2, "--executor", "oracle"], "--executor with a chip as --target: has no effect"),
        (["m", "--emit", "atc"], "--emit atc is for chips only"),
        (["m", "--external-weight", "1"], "--external-weight with --target host"),
        (["m", "--gears", "8"], "gear 1 ('8') has 1 value(s)"),
        (["m", *A2, "--gears", "8,x"], "'x' is not a size"),
        (["m", *A2, "--max-batch-tokens", "8", "--gears", "8,2"], "with --gears"),
        (["m", "--num-pages", "9"], "--num-pages 9 without --gears"),
        (["m", "--build-plugin"], "MODEL with --build-plugin: has no effect"),
        (["m", "--capabilities", "Ascend910B3"], "one SoC"),
    ],
)
def test_options_that_contradict_each_other_are_usage_errors(args: list[str], words: str) -> None:
    """Before a model is looked for: `m` is none."""
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in " ".join(result.stderr.split())
