"""`--emit atc` and `--from-om`: the folder that goes to another machine and what comes back."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_atc.cann_tree import make_cann, make_plugin
from onnx_samples import save_tiny

from pagedom.compiler.atc_bundle import (
    AtcBundle,
    BundleError,
    check_bundle_om,
    read_bundle,
    write_atc_bundle,
)
from pagedom.compiler.atc_options import AtcOptions
from pagedom.compiler.atc_read_back import (
    ExpectedOm,
    ExpectedTensor,
    ReadBackError,
    expected_tensors,
    read_back_om,
    require_om,
)
from pagedom.compiler.cann_install import find_cann
from pagedom.compiler.gear_list import parse_gears
from pagedom.compiler.target_resolve import resolve_target

A2 = resolve_target("Ascend910B3")
SHAPES = {"x": ("T", 4), "rows": ("R",)}
GEARED = AtcOptions(A2, SHAPES, parse_gears("8,2;4,1", 2, A2.family.gears), device_tiling=True)
INPUTS = expected_tensors(SHAPES, {"x": "float32", "rows": "int32"})
OUTPUTS = (ExpectedTensor("y", "float32", ("R", 4)),)


def bundle(tmp_path: Path, **changes: object) -> AtcBundle:
    model = save_tiny(tmp_path / "made" / "tiny.onnx")
    return dataclasses.replace(AtcBundle("tiny", model, GEARED, INPUTS, OUTPUTS), **changes)


def run_script(folder: Path, tmp_path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    cann = tmp_path / "cann"
    if not cann.exists():
        make_cann(cann)
    plugin = make_plugin(tmp_path / "vendor", ["pagedom::1::RmsNorm"])
    env = {
        **os.environ,
        "ATC": str(cann / "bin" / "atc"),
        "ASCEND_CUSTOM_OPP_PATH": str(plugin),
        **environ,
    }
    return subprocess.run(
        [folder / "compile.sh"], env=env, capture_output=True, text=True, check=False, cwd="/"
    )


def test_the_script_compiles_and_the_om_is_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    files = write_atc_bundle(folder, bundle(tmp_path))
    names = sorted(path.relative_to(folder).as_posix() for path in files)
    assert names == ["README.md", "bundle.json", "compile.sh", "model.onnx", "tiny.onnx.data"]
    with pytest.raises(BundleError, match=r"no model\.om yet"):
        check_bundle_om(folder)
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    done = run_script(moved, tmp_path, JOBS="2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--from-om" in done.stdout
    assert check_bundle_om(moved) == moved / "model.om"
    assert read_bundle(moved).num_gears == 2
    assert json.loads((moved / "bundle.json").read_text())["soc_version"] == "Ascend910B3"


def test_a_model_that_lies_in_the_folder_already(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    model = save_tiny(folder / "model.onnx")
    write_atc_bundle(folder, bundle(tmp_path, onnx=model))
    assert run_script(folder, tmp_path).returncode == 0
    write_atc_bundle(folder, bundle(tmp_path, onnx=model))  # a second time changes nothing
    assert run_script(folder, tmp_path).returncode == 0


def test_the_script_says_what_is_wrong(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    write_atc_bundle(folder, bundle(tmp_path))
    failed = run_script(folder, tmp_path, FAKE_ATC_CODE="E20001|Operator x failed.")
    assert failed.returncode == 1
    assert "E20001" in failed.stdout
    assert "atc.log" in failed.stderr
    assert run_script(folder, tmp_path, FAKE_ATC_NO_OUTPUT="1").returncode == 1
    absent = run_script(folder, tmp_path, ATC="/absent/atc")
    assert absent.returncode == 2
    assert "set_env.sh" in absent.stderr
    spaced = tmp_path / "with space"
    shutil.move(folder, spaced)
    refused = run_script(spaced, tmp_path)
    assert refused.returncode == 2
    assert "move this folder" in refused.stderr


def test_an_old_om_does_not_hide_a_failure(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    write_atc_bundle(folder, bundle(tmp_path))
    assert run_script(folder, tmp_path).returncode == 0
    assert run_script(folder, tmp_path, FAKE_ATC_NO_OUTPUT="1").returncode == 1
    with pytest.raises(BundleError, match=r"no model\.om yet"):
        check_bundle_om(folder)


def test_arguments_are_quoted_for_the_shell(tmp_path: Path) -> None:
    shapes = {"x$(touch /tmp/pwned)'": ("T", 4), "rows": ("R",)}
    options = AtcOptions(A2, shapes, GEARED.gears)
    folder = tmp_path / "bundle"
    write_atc_bundle(folder, bundle(tmp_path, options=options))
    done = run_script(folder, tmp_path)
    assert not Path("/tmp/pwned").exists()
    assert "Opname x$(touch /tmp/pwned)' specified in --input_shape" in done.stdout


def with_plugin(tmp_path: Path) -> tuple[Path, str]:
    """Write a bundle with plugin sources; return it and a PATH with a cmake that notes its calls.

    That cmake makes the vendor folder, as building the real plugin does.
    """
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "CMakeLists.txt").write_text("# plugin\n")
    folder = tmp_path / "bundle"
    files = write_atc_bundle(folder, bundle(tmp_path, plugin_sources=sources))
    assert folder / "plugin" / "CMakeLists.txt" in files
    cmake = tmp_path / "bin" / "cmake"
    cmake.parent.mkdir()
    ready = make_plugin(tmp_path / "ready", ["pagedom::1::RmsNorm"])
    cmake.write_text(
        f'#!/bin/sh\necho "$@" >> "{tmp_path}/called"\n'
        f'if [ "$1" = --install ]; then mkdir -p "$4/vendors" && '
        f'cp -r "{ready}" "$4/vendors/pagedom"; fi\n'
    )
    cmake.chmod(0o755)
    return folder, f"{cmake.parent}:{os.environ['PATH']}"


def test_plugin_sources_travel_and_are_built_there(tmp_path: Path) -> None:
    folder, path = with_plugin(tmp_path)
    done = run_script(folder, tmp_path, PATH=path, ASCEND_CUSTOM_OPP_PATH="")
    assert done.returncode == 0, done.stdout + done.stderr
    called = (tmp_path / "called").read_text()
    assert f"-DPAGEDOM_CANN={tmp_path / 'cann'}" in called.split()


@pytest.mark.parametrize(
    "atc_folder", ["bin", "compiler/bin", "atc/bin", "aarch64-linux/bin", "a/b/c/bin"]
)
@pytest.mark.parametrize("form", ["its path", "a link to it", "on PATH"])
def test_the_script_finds_the_toolkit_that_an_atc_belongs_to(
    tmp_path: Path, atc_folder: str, form: str
) -> None:
    """Without ASCEND_HOME_PATH, as compile-model itself finds it."""
    folder, path = with_plugin(tmp_path)
    cann = make_cann(tmp_path / "toolkit" / "8.1.RC1", atc_folder=atc_folder)
    # What a toolkit's part has beside its atc, and the toolkit too.
    (cann / atc_folder).parent.joinpath("include", "register").mkdir(parents=True)
    atc = cann / atc_folder / "atc"
    assert find_cann(atc, {}, []).root == cann
    link = tmp_path / "links" / "atc"
    link.parent.mkdir()
    link.symlink_to(atc)
    assert find_cann(None, {"PATH": str(link.parent)}, []).root == cann
    given = {
        "its path": {"ATC": str(atc)},
        "a link to it": {"ATC": str(link)},
        "on PATH": {"ATC": "", "PATH": f"{atc.parent}:{path}"},
    }[form]
    unset = {"ASCEND_HOME_PATH": "", "ASCEND_TOOLKIT_HOME": "", "ASCEND_CUSTOM_OPP_PATH": ""}
    done = run_script(folder, tmp_path, **{"PATH": path, **unset, **given})
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"-DPAGEDOM_CANN={cann}\n" in (tmp_path / "called").read_text()


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
def test_the_toolkit_that_the_environment_names_goes_first(tmp_path: Path, variable: str) -> None:
    folder, path = with_plugin(tmp_path)
    unset = {"ASCEND_HOME_PATH": "", "ASCEND_TOOLKIT_HOME": "", "ASCEND_CUSTOM_OPP_PATH": ""}
    done = run_script(folder, tmp_path, **{**unset, "PATH": path, variable: "/opt/other"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "-DPAGEDOM_CANN=/opt/other\n" in (tmp_path / "called").read_text()


def test_an_atc_without_a_toolkit_is_said(tmp_path: Path) -> None:
    folder, path = with_plugin(tmp_path)
    lone = tmp_path / "lone" / "atc"
    lone.parent.mkdir()
    lone.write_text("#!/bin/sh\n")
    lone.chmod(0o755)
    done = run_script(
        folder, tmp_path, PATH=path, ATC=str(lone), ASCEND_HOME_PATH="", ASCEND_TOOLKIT_HOME=""
    )
    assert done.returncode == 2
    assert f"no CANN found around {lone}: source its set_env.sh" in done.stderr
    assert not (tmp_path / "called").exists()


def test_a_folder_that_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"bundle\.json is absent"):
        check_bundle_om(tmp_path)
    (tmp_path / "bundle.json").write_text('{"schema": 99}')
    with pytest.raises(BundleError, match="schema 99"):
        read_bundle(tmp_path)
    (tmp_path / "bundle.json").write_text('{"schema": 1}')
    with pytest.raises(BundleError, match="write the bundle again"):
        read_bundle(tmp_path)


@pytest.fixture
def om(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    write_atc_bundle(folder, bundle(tmp_path))
    assert run_script(folder, tmp_path).returncode == 0
    return folder / "model.om"


def test_read_back_lists_every_difference(om: Path) -> None:
    expected = ExpectedOm(A2, INPUTS, OUTPUTS, num_gears=2)
    assert read_back_om(om, expected) == []
    other = ExpectedOm(
        resolve_target("Ascend910B4"),
        (
            ExpectedTensor("x", "float16", ("T", 8)),
            ExpectedTensor("ids", "int32", ("R",)),
        ),
        (ExpectedTensor("logits", "float32", ("R", 4)),),
    )
    text = "\n".join(read_back_om(om, other))
    for words in (
        "made for Ascend910B3; Ascend910B4 is wanted (same family",
        "input 'x' is float32, must be float16",
        "input 'x' has shape [-1, 4], must be ['T', 8]",
        "input 'ids' is absent",
        "input 'rows' of the OM was not asked for",
        "the OM has gears",
        "is where 'logits' is wanted",
    ):
        assert words in text
    with pytest.raises(ReadBackError) as caught:
        require_om(om, other)
    assert len(caught.value.problems) == 7


def test_read_back_of_another_family_and_of_no_om(om: Path, tmp_path: Path) -> None:
    edge = ExpectedOm(resolve_target("Ascend310P3"), INPUTS, OUTPUTS, num_gears=2)
    assert "a loader refuses it" in read_back_om(om, edge)[0]
    (tmp_path / "bad.om").write_bytes(b"IMOD")
    assert len(read_back_om(tmp_path / "bad.om", edge)) == 1
    fewer = ExpectedOm(A2, INPUTS, (), num_gears=2)
    assert "1 output(s)" in read_back_om(om, fewer)[0]
