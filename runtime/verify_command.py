"""`run-om verify`: read everything of a model file or an artefact and say what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.text import Text

from . import artifact as artifact_module
from .acl.constants import GEAR_INPUT_NAME
from .artifact import Artifact, ArtifactError
from .manifest import Binding, Manifest, OutputBinding
from .om_file.errors import OmFormatError
from .om_file.ge_graph import TensorDesc, WeightRef
from .om_file.model_def import ModelDef
from .om_file.om_reader import OmFile, SubModel, read_om
from .om_file.om_writer import PADDING_KEY
from .show import show


@dataclass(frozen=True)
class Check:
    """One thing that was looked at, and every problem with it; none = it is sound."""

    name: str
    problems: tuple[str, ...] = ()


def verify_om(path: str | Path) -> list[Check]:
    """Check a model file: container, graphs, constants, task list.

    Raises:
        OSError: the file cannot be read. What is wrong inside is returned, not raised.
    """
    try:
        with read_om(path) as om:
            return list(_om_checks(om))
    except OmFormatError as error:
        return [Check("container", (str(error),))]


def verify_artifact(
    folder: str | Path, progress: artifact_module.Progress | None = None
) -> list[Check]:
    """Check an artefact: manifest, hashes, the model file, and that the two agree."""
    try:
        artifact = Artifact.open(folder)
    except ArtifactError as error:
        return [Check("manifest and sizes", (str(error),))]
    checks = [Check("manifest and sizes")]
    try:
        artifact.verify(progress)
        checks.append(Check("SHA-256 of every file"))
    except ArtifactError as error:
        checks.append(Check("SHA-256 of every file", (str(error),)))
    checks.extend(verify_om(artifact.model_path))
    if not any(check.problems for check in checks):
        with read_om(artifact.model_path) as om:
            problems = tuple(binding_problems(artifact.manifest, om.model_def))
        checks.append(Check("bindings against the graph", problems))
    return checks


def binding_problems(manifest: Manifest, model: ModelDef) -> Iterator[str]:
    """Compare the manifest's inputs and outputs with the graph's Data nodes and NetOutput."""
    graph = model.graph
    descs = {
        node.name: (node.output_descs or node.input_descs)[0]
        for node in graph.data_nodes
        if node.output_descs or node.input_descs
    }
    for binding in manifest.inputs:
        desc = descs.pop(binding.name, None)
        if desc is None:
            yield f"input {binding.name!r} is in the manifest, but the graph has no such Data node"
        else:
            yield from _desc_problems(binding, desc)
    if manifest.gears:  # GE appends it behind the inputs; whoever sets the dims fills it
        descs.pop(GEAR_INPUT_NAME, None)
    for name in descs:
        yield f"Data node {name!r} is in the graph, but not in the manifest"
    found = len(graph.net_output.input_descs)
    if found != len(manifest.outputs):
        yield f"the graph has {found} outputs, the manifest {len(manifest.outputs)}"
        return
    for output, desc in zip(manifest.outputs, graph.net_output.input_descs):
        yield from _desc_problems(output, desc)


def _desc_problems(binding: Binding | OutputBinding, desc: TensorDesc) -> Iterator[str]:
    if binding.dtype != desc.dtype:
        yield f"{binding.name!r} is {binding.dtype} in the manifest, {desc.dtype} in the graph"
    fits = len(binding.shape) == len(desc.shape) and all(
        isinstance(said, str) or extent < 0 or said == extent
        for said, extent in zip(binding.shape, desc.shape)
    )
    if not fits:
        yield (
            f"{binding.name!r} has shape {list(binding.shape)} in the manifest, "
            f"{list(desc.shape)} in the graph"
        )


def _om_checks(om: OmFile) -> Iterator[Check]:
    mismatches = [text for model in om.models for text in model.table.offset_mismatches]
    yield Check("header and partitions", tuple(mismatches))
    for model in om.models:
        label = "" if len(om.models) == 1 else f" of model {model.index}"
        try:
            definition = model.model_def
        except OmFormatError as error:
            yield Check(f"graph{label}", (str(error),))
            continue
        ours = PADDING_KEY in definition.attrs
        problems = [p for graph in definition.graphs[:1] for p in graph.validate(ordered=ours)]
        yield Check(f"graph{label}", tuple(problems))
        yield Check(f"constants{label}", tuple(_constant_problems(model)))
        yield Check(f"inputs, outputs and tasks{label}", tuple(_record_problems(model)))


def _constant_problems(model: SubModel) -> Iterator[str]:
    for node in (node for graph in model.model_def.graphs for node in graph.nodes):
        ref = node.attrs.get("value")
        if not isinstance(ref, WeightRef):
            continue
        try:
            model.weight(ref)
        except OmFormatError as error:
            yield f"{node.name!r}: {error}"


def _record_problems(model: SubModel) -> Iterator[str]:
    for name in ("inout_info", "task_info"):
        try:
            getattr(model, name)
        except OmFormatError as error:
            yield str(error)


@click.command(name="verify", short_help="Check a model file or an artefact completely.")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
def verify(path: Path) -> None:
    """Read all of PATH (an artefact's folder or an .om file) and check it.

    Exit code 0: sound. 1: something is wrong; every problem is listed.
    """
    try:
        checks = _verify_with_progress(path) if path.is_dir() else verify_om(path)
    except OSError as error:
        raise click.ClickException(str(error)) from None
    show(*(part for check in checks for part in _render(check)))
    if any(check.problems for check in checks):
        raise click.exceptions.Exit(1)


def _render(check: Check) -> Iterator[RenderableType]:
    mark = Text("wrong ", style="red") if check.problems else Text("ok    ", style="green")
    yield mark + Text(check.name)
    for problem in check.problems:
        yield Padding(Text(problem), (0, 0, 0, 6))


def _verify_with_progress(path: Path) -> list[Check]:
    if not sys.stderr.isatty():
        return verify_artifact(path, lambda name, done, total: None)
    columns = (TextColumn("hashing"), BarColumn(), DownloadColumn())
    # The bar goes to stderr and vanishes: stdout holds the result alone.
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("hashing", total=None)

        def advance(name: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return verify_artifact(path, advance)
