"""The runtime's side of the memory ledger: a manifest and engine options as its plain numbers.

Nothing is loaded and no device is asked: sizes are the ones that the engine itself would choose,
weights and workspace are what the compiler wrote into the manifest.
"""

from __future__ import annotations

from dataclasses import replace

from .artifact_backend import model_facts
from .engine_core import batch_limits
from .engine_options import EngineOptions
from .gears import Gears
from .manifest import HOST_TARGET, Manifest
from .memory_advice import Lever, fewer_pages, larger_device, needed, smaller
from .memory_ledger import LedgerRow, MemoryFacts, MemoryPlan, host_memory_bytes, ledger
from .number_text import size_text

_COMPILE_AGAIN = "Compile again with "


def plan_artifact(
    manifest: Manifest,
    options: EngineOptions,
    memory_bytes: int | None = None,
    mean_len: float | None = None,
) -> MemoryPlan:
    """Return the ledger of an artefact under engine options, with advice when it does not fit.

    memory_bytes: of the device; None takes this machine's for the target host, else what the
    manifest says. mean_len: tokens of a sequence on average; None is half of the longest. Raises
    ValueError where the engine would or for a mean above the longest, KvCacheError for an unknown
    cache.
    """
    if mean_len is not None and not 0 < mean_len <= manifest.max_seq_len:
        raise ValueError(
            f"mean length {mean_len}: must be above 0, at most {manifest.max_seq_len}, the longest "
            "sequence that the artefact was compiled for"
        )
    options.resolve(model_facts(manifest, Gears(manifest.gears)))  # it warns of a small pool
    facts = memory_facts(manifest, options, memory_bytes)
    if mean_len is not None:
        facts = replace(facts, mean_len=mean_len)
    plan = ledger(facts)
    if plan.fits is not False:
        return plan
    return replace(plan, advice=_advice(manifest, options, facts))


def memory_facts(
    manifest: Manifest, options: EngineOptions, memory_bytes: int | None = None
) -> MemoryFacts:
    """Return the numbers that the ledger is made of."""
    geometry = model_facts(manifest, Gears(manifest.gears))
    sizes = options.sizes(geometry)
    spec, said = geometry.cache, manifest.memory
    memory, source = _memory(manifest, memory_bytes)
    return MemoryFacts(
        model=manifest.name,
        target=manifest.soc or manifest.target,
        dtype=manifest.dtype,
        weight_dtype=manifest.dtype,
        kv_dtype=spec.dtype,
        constants=(_weights(manifest),),
        num_layers=manifest.model.num_layers,
        num_heads=manifest.model.num_heads,
        token_bytes=spec.bytes_per_token,
        page_size=spec.page_size,
        max_seq_len=manifest.max_seq_len,
        max_batch=sizes.policy.max_batch,
        pages=sizes.num_pages - 1,
        limits=batch_limits(sizes.policy, geometry),
        outputs=manifest.outputs,
        mean_len=manifest.max_seq_len / 2,
        activations_per_token=said.get("activations_per_token", 0),
        workspace=said.get("workspace"),
        composed=not spec.in_place,
        bindings=geometry.bindings,
        num_gears=len(manifest.gears),
        memory_bytes=memory,
        memory_source=source,
    )


def _weights(manifest: Manifest) -> LedgerRow:
    said = manifest.memory.get("weights")
    if said is not None:
        return LedgerRow("weights", said, "and constants, as compiled")
    stored = sum(record.bytes for name, record in manifest.files.items() if name.endswith(".om"))
    return LedgerRow("weights", stored, "the size of the .om file", estimate=True)


def _memory(manifest: Manifest, given: int | None) -> tuple[int | None, str]:
    if given is not None:
        return given, "given"
    if manifest.target == HOST_TARGET:
        return host_memory_bytes(), "this machine's RAM"
    return manifest.memory.get("device"), "the device as compiled for; confirm with `npu-smi info`"


def _advice(manifest: Manifest, options: EngineOptions, facts: MemoryFacts) -> tuple[str, ...]:
    """Propose what the command can change, then what compiling again can."""
    plan = ledger(facts)
    fixed = model_facts(manifest, Gears(manifest.gears)).num_pages
    found = [needed(plan)]
    if options.cache == "contiguous":
        paged = _plan(manifest, replace(options, cache="paged"), facts)
        found.append(f"--cache paged: total {size_text(paged.total_bytes)}.")
    for lever in _levers(manifest, options, facts):
        found += smaller(lever)
    found += fewer_pages(plan, _COMPILE_AGAIN if fixed else "")
    if manifest.dtype == "float32":
        found.append(_in_16_bits(facts))
    found.append(larger_device(plan, facts.utilisation))
    return tuple(found)


def _levers(manifest: Manifest, options: EngineOptions, facts: MemoryFacts) -> list[Lever]:
    def batch(value: int) -> MemoryPlan:
        # an explicit pool does not shrink by itself: let it follow
        changed = replace(options, max_batch=value, num_pages=None, kv_bytes=None)
        return _plan(manifest, changed, facts)

    def tokens(value: int) -> MemoryPlan:
        return _plan(manifest, replace(options, max_batch_tokens=value), facts)

    return [
        Lever("--max-batch", facts.max_batch, batch),
        Lever("--max-batch-tokens", facts.limits.max_tokens, tokens, least=facts.max_batch),
    ]


def _plan(manifest: Manifest, options: EngineOptions, facts: MemoryFacts) -> MemoryPlan:
    return ledger(memory_facts(manifest, options, facts.memory_bytes))


def _in_16_bits(facts: MemoryFacts) -> str:
    weights = facts.constants[0]
    half = replace(
        facts,
        constants=(replace(weights, bytes=weights.bytes // 2),),
        token_bytes=facts.token_bytes // 2,
        activations_per_token=facts.activations_per_token // 2,
    )
    plan = ledger(half)
    verdict = "fits" if plan.fits else "still does not fit"
    return (
        f"{_COMPILE_AGAIN}--dtype bfloat16: total about {size_text(plan.total_bytes)}: {verdict}."
    )
