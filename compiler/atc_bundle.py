"""`--emit atc`: all that a machine with CANN needs to compile the model, in one folder.

model.onnx [model.onnx.data]   the graph and its weights
plugin/                        sources of the parser plugin, if the graph needs it
compile.sh                     builds the plugin, runs ATC, writes model.om here
bundle.json                    chip, inputs, outputs, options: what --from-om checks
README.md                      three lines to type
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runtime.om_file import OmFormatError
from .atc_cache import file_hash
from .atc_options import AtcOptions, build_command
from .atc_read_back import ExpectedOm, ExpectedTensor, ReadBackError, read_back_om
from .atc_workspace import external_files, link_or_copy
from .cann_install import ROOT_MARK
from .target_resolve import resolve_target

SCHEMA = 1
BUNDLE_FILE, SCRIPT_FILE, ONNX_FILE, OM_STEM = "bundle.json", "compile.sh", "model.onnx", "model"
PLUGIN_FOLDER, PLUGIN_PREFIX, VENDOR_FOLDER = "plugin", "plugin-install", "vendors/pagedom"


@dataclass(frozen=True)
class AtcBundle:
    """What to put into the folder."""

    name: str
    onnx: Path
    options: AtcOptions
    inputs: Sequence[ExpectedTensor]
    outputs: Sequence[ExpectedTensor]
    plugin_sources: Path | None = None  # as plugin.copy_sources writes them
    extra: Sequence[Path] = ()  # what else lies in the folder already


class BundleError(ValueError):
    """A folder is no bundle, or its OM is not the one it was written for."""


def write_atc_bundle(folder: Path, bundle: AtcBundle) -> list[Path]:
    """Write the folder and return its files; the model may lie in it already.

    Raises OSError as the file system does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = _bring_model(folder, bundle.onnx)
    if bundle.plugin_sources is not None:
        target = folder / PLUGIN_FOLDER
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(bundle.plugin_sources, target)
        files += sorted(path for path in target.rglob("*") if path.is_file())
    for name, text in (("README.md", _readme(bundle)), (SCRIPT_FILE, _script(bundle))):
        path = folder / name
        path.write_text(text, encoding="utf-8")
        files.append(path)
    (folder / SCRIPT_FILE).chmod(0o755)
    files += bundle.extra
    record = _record(bundle, folder / ONNX_FILE)
    record["files"] = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size} for path in files
    }
    path = folder / BUNDLE_FILE
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return [*files, path]


def check_bundle_om(folder: Path) -> Path:
    """Return the OM that compile.sh left in a bundle, checked against what was asked for.

    Raises BundleError where there is none or it is another; OSError as the file system does.
    """
    expected = read_bundle(folder)
    found = [path for path in sorted(folder.glob(f"{OM_STEM}*.om")) if path.stat().st_size]
    if not found:
        raise BundleError(
            f"{folder} holds no {OM_STEM}.om yet: run {SCRIPT_FILE} on a machine with CANN"
        )
    problems = read_back_om(found[0], expected)
    if problems:
        raise BundleError(str(ReadBackError(found[0], problems)))
    return found[0]


def read_bundle(folder: Path) -> ExpectedOm:
    """Return what the OM of a bundle must be; raises BundleError if the folder is no bundle."""
    path = folder / BUNDLE_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["schema"] != SCHEMA:
            raise BundleError(
                f"{path} has schema {record['schema']!r}, this pagedom reads {SCHEMA}: write the "
                "bundle again"
            )
        return ExpectedOm(
            resolve_target(record["soc_version"]),
            _tensors(record["inputs"]),
            _tensors(record["outputs"]),
            len(record["gears"]),
        )
    except FileNotFoundError:
        raise BundleError(f"{folder} is no bundle of --emit atc: {BUNDLE_FILE} is absent") from None
    except (json.JSONDecodeError, KeyError, TypeError, OmFormatError) as error:
        raise BundleError(f"{path} cannot be used ({error!r}): write the bundle again") from None


def _tensors(rows: Sequence[Mapping[str, Any]]) -> tuple[ExpectedTensor, ...]:
    return tuple(ExpectedTensor(row["name"], row["dtype"], tuple(row["shape"])) for row in rows)


def _bring_model(folder: Path, onnx: Path) -> list[Path]:
    data = external_files(onnx)
    files = []
    for source, name in ((onnx, ONNX_FILE), *((onnx.parent / one, one) for one in data)):
        target = folder / name
        if not (target.exists() and target.samefile(source)):
            target.unlink(missing_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(source, target)
        files.append(target)
    return files


def _record(bundle: AtcBundle, onnx: Path) -> dict[str, Any]:
    def rows(tensors: Sequence[ExpectedTensor]) -> list[dict[str, Any]]:
        return [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in tensors]

    gears = bundle.options.gears
    return {
        "schema": SCHEMA,
        "name": bundle.name,
        "soc_version": bundle.options.target.name,
        "onnx_sha256": file_hash(onnx),
        "inputs": rows(bundle.inputs),
        "outputs": rows(bundle.outputs),
        "gears": [list(gear) for gear in gears.gears] if gears else [],
        "command": list(_arguments(bundle.options)),
    }


def _arguments(options: AtcOptions) -> tuple[str, ...]:
    command = build_command(Path("atc"), Path(ONNX_FILE), Path(OM_STEM), options)
    return command.argv[1:]


def _script(bundle: AtcBundle) -> str:
    arguments = " \\\n    ".join(shlex.quote(word) for word in _arguments(bundle.options))
    plugin = ""
    if bundle.plugin_sources is not None:
        plugin = _PLUGIN_PART
    return _SCRIPT.format(
        target=bundle.options.target.name,
        plugin=plugin,
        arguments=arguments,
        onnx=ONNX_FILE,
        stem=OM_STEM,
    )


def _readme(bundle: AtcBundle) -> str:
    plugin = (
        f"`{PLUGIN_FOLDER}/` holds the sources of the parser plugin; `{SCRIPT_FILE}` builds them "
        "with cmake and a C++17 compiler.\n\n"
        if bundle.plugin_sources is not None
        else ""
    )
    return _README.format(name=bundle.name, target=bundle.options.target.name, plugin=plugin)


_SCRIPT = """#!/usr/bin/env bash
# Compiles {onnx} for {target}; written by compile-model --emit atc.
#   ATC=/path/to/atc     the compiler, if it is not on PATH (source CANN's set_env.sh first)
#   JOBS=1               processes that compile kernels at one time; few on a small machine
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")"
LC_ALL=C  # letters are A to Z here, whatever the language
case "$(pwd -P)" in
    *[!A-Za-z0-9./_-]*)
        echo "ATC takes only paths of letters, digits, '.', '_' and '-': move this folder." >&2
        exit 2
        ;;
esac
atc="${{ATC:-atc}}"
if ! command -v "$atc" >/dev/null; then
    echo "no atc found: source CANN's set_env.sh, or set ATC" >&2
    exit 2
fi
if [ -n "${{JOBS:-}}" ]; then
    export TE_PARALLEL_COMPILER="$JOBS" MAX_COMPILE_CORE_NUMBER="$JOBS"
fi
{plugin}rm -f {stem}.om {stem}_linux_*.om
status=0
"$atc" \\
    {arguments} 2>&1 | tee atc.log || status=$?
written=$(ls {stem}.om {stem}_linux_*.om 2>/dev/null || true)
if [ "$status" != 0 ] || ! grep -q "ATC run success" atc.log || [ -z "$written" ]; then
    echo "ATC failed: see atc.log, and docs/troubleshooting.md for its codes" >&2
    exit 1
fi
echo "done: now finish the artefact with compile-model --from-om on this folder"
"""
# Up from atc to the toolkit's folder, as `cann_install` does; links followed, then as it was typed.
_PLUGIN_PART = f"""cann="${{ASCEND_HOME_PATH:-${{ASCEND_TOOLKIT_HOME:-}}}}"
typed="$(command -v "$atc")"
for folder in "$(readlink -f "$typed")" "$typed"; do
    while [ -z "$cann" ] && [ "$folder" != "$(dirname "$folder")" ]; do
        folder="$(dirname "$folder")"
        if [ -d "$folder/{ROOT_MARK}" ]; then
            cann="$folder"
        fi
    done
done
if [ -z "$cann" ]; then
    echo "no CANN found around $typed: source its set_env.sh, or set ASCEND_HOME_PATH" >&2
    exit 2
fi
if [ ! -d {PLUGIN_PREFIX}/{VENDOR_FOLDER} ]; then
    cmake -S {PLUGIN_FOLDER} -B plugin-build -DPAGEDOM_CANN="$cann"
    cmake --build plugin-build
    cmake --install plugin-build --prefix "$PWD/{PLUGIN_PREFIX}"
fi
vendor="$PWD/{PLUGIN_PREFIX}/{VENDOR_FOLDER}"
export ASCEND_CUSTOM_OPP_PATH="$vendor${{ASCEND_CUSTOM_OPP_PATH:+:$ASCEND_CUSTOM_OPP_PATH}}"
"""
_README = """# {name} for {target}

On a machine with CANN, in a folder whose path has letters, digits, `.`, `_` and `-` only:

    source /usr/local/Ascend/ascend-toolkit/set_env.sh
    ./compile.sh

{plugin}Then make the artefact, there or on any machine with pagedom that the folder was copied to:

    compile-model --from-om FOLDER -o ARTEFACT

`bundle.json` says what the OM must look like; `--from-om` checks it. `atc.log` keeps ATC's output.
"""
