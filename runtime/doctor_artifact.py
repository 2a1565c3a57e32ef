"""What an artefact needs against what is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .acl.executors.page_sizes import OPENVINO_BLOCK, takes_pages
from .artifact import COPY_AGAIN, Artifact, ArtifactError
from .artifact_memory import memory_facts
from .doctor_acl import AclState
from .doctor_cann import CannState
from .doctor_findings import OK, PROBLEM, WARNING, Finding, size
from .doctor_machine import MachineState
from .engine_options import EngineOptions
from .manifest import HOST_TARGET, Manifest
from .memory_ledger import ledger, pages_of

_BUFFERS = ("step inputs", "step outputs", "workspace")  # rows of the ledger
_FLOAT16_ONLY = ("Ascend310P",)  # no bfloat16 in hardware: facts of the ascend310p family


@dataclass(frozen=True)
class Found:
    """Everything that an artefact is held against."""

    cann: CannState
    acl: AclState
    machine: MachineState


def look_at_artifact(folder: Path, found: Found) -> Iterator[Finding]:
    """Yield how an artefact fits this machine; an unreadable one is a problem."""
    try:
        manifest = Artifact.open(folder).manifest
    except ArtifactError as error:
        yield Finding("artefact", PROBLEM, error.problem, (error.advice or COPY_AGAIN) + ".")
        return
    except OSError as error:
        yield Finding("artefact", PROBLEM, str(error), f"{COPY_AGAIN}.")
        return
    yield Finding(
        "artefact",
        OK,
        f"{manifest.name} for {manifest.soc or manifest.target}, {manifest.dtype}, schema "
        f"{manifest.schema}, pages of {manifest.page_size}; files have their sizes (run-om verify "
        "reads them all)",
    )
    if manifest.target == HOST_TARGET:
        yield from _on_host(manifest, found)
        yield from _memory(manifest, found.machine.free_bytes, "this machine")
    else:
        yield from _on_chip(manifest, found)
        free = max((free for free, _ in found.acl.memory), default=0)
        yield from _memory(manifest, free, "the device")


def _on_host(manifest: Manifest, found: Found) -> Iterator[Finding]:
    if not found.machine.has_openvino:
        yield Finding(
            "executor",
            PROBLEM,
            "openvino is not installed",
            "pip install 'openvino==2026.4.*', or run with --executor oracle (slow).",
        )
    elif not takes_pages("openvino", manifest.page_size):
        yield Finding(
            "executor",
            WARNING,
            f"pages of {manifest.page_size} tokens are not a multiple of {OPENVINO_BLOCK}: the "
            "openvino executor refuses them",
            f"Run with --executor oracle (slow), or compile with --page-size {OPENVINO_BLOCK}.",
        )
    elif manifest.dtype == "float16":
        yield Finding(
            "executor",
            WARNING,
            "openvino computes float16 models in bfloat16, with fewer digits",
            "Fine for trying out; compile with --dtype float32 where digits count.",
        )
    else:
        yield Finding("executor", OK, "openvino on this CPU")


def _on_chip(manifest: Manifest, found: Found) -> Iterator[Finding]:
    wanted, soc = manifest.soc or manifest.target, found.acl.soc
    if not found.acl.works:
        yield Finding(
            "chip",
            PROBLEM,
            f"the artefact needs {wanted}, and no device can be used here",
            "See the lines above: CANN, driver and acl must all be there. To run on this CPU, "
            "compile with --target host.",
        )
    elif soc is None:
        seen = f"the artefact needs {wanted}; ACL does not say which chip this is"
        yield Finding("chip", WARNING, seen, "Compare it with npu-smi info yourself.")
    elif soc.lower() != wanted.lower():
        yield Finding(
            "chip",
            PROBLEM,
            f"the artefact needs {wanted}, this is {soc}",
            f"Compile it for this chip: compile-model MODEL --target {soc}.",
        )
    else:
        yield Finding("chip", OK, soc)
    if manifest.dtype == "bfloat16" and wanted.startswith(_FLOAT16_ONLY):
        advice = "Compile with --dtype float16."
        yield Finding("dtype", PROBLEM, f"{wanted} has no bfloat16", advice)
    yield from _release(manifest, found.cann.release)


def _release(manifest: Manifest, release: str) -> Iterator[Finding]:
    made = manifest.tools.get("cann", "")
    if made and release and made != release:
        yield Finding(
            "CANN of the artefact",
            WARNING,
            f"it was compiled with CANN {made}, this is {release}",
            "A newer CANN runs models of up to four releases before it; with open dims the "
            "operator package must be the same. If loading fails, compile it again here.",
        )


def _memory(manifest: Manifest, free: int, where: str) -> Iterator[Finding]:
    """Hold the ledger of an engine with its usual settings against the memory that is free."""
    if not free:
        return
    try:
        plan = ledger(replace(memory_facts(manifest, EngineOptions(), free), utilisation=1.0))
    except ValueError as error:  # also what the manifest says of its cache
        yield Finding("room", PROBLEM, str(error), f"{COPY_AGAIN}.")
        return
    weights, page = plan.row("weights").bytes, plan.page_bytes
    other = sum(row.bytes for row in plan.rows if row.name in _BUFFERS)
    pages = max(0, free - weights - other) // page
    needs = f"weights {size(weights)}, buffers {size(other)}"
    if manifest.num_pages:
        seen = f"{needs}; {size(free)} are free on {where}"
        yield _compiled_pages(manifest, seen, pages, page)
        return
    whole = pages_of(manifest.max_seq_len, manifest.page_size)
    seen = (
        f"{needs}, {size(page)} a page of {manifest.page_size} tokens; {size(free)} are free on "
        f"{where}: room for {max(0, pages - 1) * manifest.page_size:,} tokens of KV cache"
    )
    smaller = "Free memory, or compile with a shorter dtype; run-om plan shows all sizes."
    if pages < 2:
        yield Finding("room", PROBLEM, seen, smaller)
    elif pages <= whole:
        advice = f"A sequence of {manifest.max_seq_len} tokens does not fit. {smaller}"
        yield Finding("room", WARNING, seen, advice)
    else:
        yield Finding("room", OK, seen)


def _compiled_pages(manifest: Manifest, seen: str, room: int, page: int) -> Finding:
    """Hold the number of pages that is compiled in against the pages that there is room for."""
    nbytes = manifest.num_pages * page
    seen += f"; its cache is compiled in, {manifest.num_pages:,} pages of {size(nbytes)} together"
    if room < manifest.num_pages:
        advice = f"Free memory, or compile with --num-pages {room} or less."
        if room < 2:
            advice = "Free memory, or compile for less: compile-model --plan shows all sizes."
        return Finding("room", PROBLEM, f"{seen}: room for {room:,}", advice)
    return Finding("room", OK, seen)
