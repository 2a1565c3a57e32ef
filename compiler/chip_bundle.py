"""`--emit atc` writes a folder for a machine with CANN; `--from-om` makes the artefact of it.

Beside what `atc_bundle` writes, the folder has `artefact/`: tokenizer, chat template and the draft
of the manifest. So --from-om needs neither the checkpoint nor the options of the first run.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ..models.checkpoint import Checkpoint
from ..runtime.artifact import MODEL_FILE, building_artifact
from ..runtime.folder_swap import FolderOwner, replacing_folder
from ..runtime.manifest import MANIFEST_FILE, Manifest, ManifestError, write_manifest
from ..runtime.om_file.description import describe_om
from .atc_bundle import (
    BUNDLE_FILE,
    OM_STEM,
    PLUGIN_PREFIX,
    VENDOR_FOLDER,
    AtcBundle,
    BundleError,
    check_bundle_om,
    read_bundle,
    write_atc_bundle,
)
from .atc_workspace import link_or_copy
from .chip_graph import (
    atc_options,
    chip_graph,
    expected_inputs,
    expected_outputs,
    uses_plugin,
    weights_nbytes,
)
from .chip_manifest import chip_manifest, measured_memory
from .onnx_weights import save_onnx
from .output_place import explaining, require_space
from .pipeline import Written, hash_stage, write_text_files
from .plugin_sources import MANIFEST as PLUGIN_MANIFEST
from .plugin_sources import (
    PluginManifest,
    copy_sources,
    registered_operators,
)
from .request import CompileRequest
from .stages import Stages, megabytes
from .target_resolve import resolve_target

ARTEFACT_FOLDER = "artefact"
_OWNER = FolderOwner(BUNDLE_FILE, "folder that --emit atc wrote")
_WEIGHTS = ("weight", f"{OM_STEM}_weight_combined")  # that ATC writes with --external_weight


@dataclass(frozen=True)
class Finished:
    """What --from-om made."""

    output: Path
    bytes: int
    target: str


def write_chip_bundle(request: CompileRequest, checkpoint: Checkpoint, stages: Stages) -> Written:
    """Write the folder of --emit atc; it appears whole or not at all.

    Raises GateError, AtcOptionError, FolderError, and what an export and the disk may raise.
    """
    with replacing_folder(request.output, _OWNER) as folder:
        texts = folder / ARTEFACT_FOLDER
        texts.mkdir()
        write_text_files(checkpoint, texts)
        graph = chip_graph(request, checkpoint, registered_operators(), stages)
        require_space(folder, request.output, weights_nbytes(graph))
        with stages.stage("Write model.onnx") as stage:
            path = folder / "model.onnx"
            files = save_onnx(graph.model, path, lambda _, done, total: stage.show(done, total))
            nbytes = sum(file.stat().st_size for file in files)
            stage.note = megabytes(nbytes)
        tools = {"cann": request.cann_release} if request.cann_release else {}
        write_manifest(texts, chip_manifest(request, graph, tools))
        with tempfile.TemporaryDirectory() as sources:
            if uses_plugin(graph):
                copy_sources(Path(sources))
            bundle = AtcBundle(
                request.config.name,
                path,
                atc_options(request, graph),
                expected_inputs(graph),
                expected_outputs(graph),
                Path(sources) if uses_plugin(graph) else None,
                extra=tuple(sorted(file for file in texts.iterdir())),
            )
            write_atc_bundle(folder, bundle)
    return Written(nbytes)


def finish_bundle(
    folder: Path, output: Path | None, target: str | None, stages: Stages
) -> Finished:
    """Make the artefact of a bundle whose compile.sh has run.

    Args:
        output: where to; None = NAME-SOC here, as a compilation would.
        target: the chip the caller names; must be the bundle's.

    Raises:
        BundleError: no bundle, no OM in it, an OM that is not the one asked for, another chip.
    """
    expected = read_bundle(folder)
    soc = expected.target.name
    if target is not None and resolve_target(target).name != soc:
        raise BundleError(
            f"{folder} was written for {soc}, --target says {resolve_target(target).name}: leave "
            "--target out, or write a bundle for that chip"
        )
    draft = _read_draft(folder)
    with stages.stage("Check model.om") as stage:
        om = check_bundle_om(folder)
        stage.note = om.name
    place = output or Path(f"{draft.name or 'model'}-{soc}")
    with explaining(place), building_artifact(place) as build:
        for file in sorted((folder / ARTEFACT_FOLDER).iterdir()):
            if file.name != MANIFEST_FILE:
                shutil.copyfile(file, build.folder / file.name)
        link_or_copy(om, build.folder / MODEL_FILE)
        _bring_weights(folder, build.folder)
        nbytes = sum(path.stat().st_size for path in build.folder.rglob("*") if path.is_file())
        manifest = _finished(draft, folder, om)
        hash_stage(build, manifest, measured_memory(om, draft.memory), stages)
    return Finished(place, nbytes, soc)


def _read_draft(folder: Path) -> Manifest:
    path = folder / ARTEFACT_FOLDER / MANIFEST_FILE
    try:
        return Manifest.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ManifestError) as error:
        raise BundleError(
            f"{path} cannot be used ({error}): copy the whole folder again, or write the bundle "
            "again"
        ) from None


def _finished(draft: Manifest, folder: Path, om: Path) -> Manifest:
    """Return the manifest with what only the other machine knew: its CANN, the plugin it built."""
    tools = dict(draft.tools)
    version = describe_om(om).tool_version
    if version:
        tools["cann"] = version
    vendor = folder / PLUGIN_PREFIX / VENDOR_FOLDER
    if (vendor / PLUGIN_MANIFEST).is_file():
        plugin = PluginManifest.read(vendor)
        tools["pagedom-plugin"] = plugin.source_hash[:16]
    return replace(draft, tools=tools)


def _bring_weights(folder: Path, target: Path) -> None:
    """Bring the weight files that lie beside an OM of --external-weight."""
    for name in _WEIGHTS:
        for file in [folder / name, *sorted((folder / name).rglob("*"))]:
            if file.is_file():
                place = target / file.relative_to(folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(file, place)
