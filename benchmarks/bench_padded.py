"""The paged, packed engine against the padded, contiguous baseline on mixed lengths.

    python benchmarks/bench_padded.py --workload workload.json                    # policies alone
    python benchmarks/bench_padded.py --workload workload.json --model ARTEFACT \\
        --out benchmarks/results/paged_vs_padded.json --plot docs/img/paged_vs_padded.png

The baseline is the same engine with the same model and kernels, and another policy: neighbouring
pages for max_seq_len tokens are reserved per sequence, and prompts are padded to the longest of the
step. Three scenes:

* `budget`: both have the same bytes of cache;
* `batch`: the baseline has as many bytes as it needs to run as many sequences as the paged side;
* `static`: as `batch`, and its prompts are not cut into chunks, as in a model with a fixed
  [batch, length] input.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import machine_facts, mib
from measuring import limit_threads, percentile, spread
from policy_trace import CacheShape, Limits, batch_that_fits, trace
from workload import BenchRequest, load_workload

# SmolLM2-135M in float32, for a look at the policies without an artefact.
_DEFAULT_SHAPE = CacheShape(30, 3, 64, 4, page_size=32, max_seq_len=1024)


def shape_of(artefact: Path) -> CacheShape:
    """The cache geometry that the artefact's manifest states, of any layout.

    Raises ArtifactError for one whose number of pages is compiled in: the scenes need several.
    """
    from pagedom.runtime.artifact import Artifact, ArtifactError
    from pagedom.runtime.cache_binding import cache_spec, compiled_pages

    manifest = Artifact.open(artefact).manifest
    spec = cache_spec(manifest)
    pages = compiled_pages(manifest, spec)
    if pages:
        raise ArtifactError(
            f"{artefact} has a cache of {pages} pages compiled in, and the scenes compare caches "
            "of several sizes",
            "Compile it without --gears",
        )
    return CacheShape(
        layers=manifest.model.num_layers,
        kv_heads=manifest.model.num_kv_heads,
        head_dim=manifest.model.head_dim,
        itemsize=spec.itemsize,
        page_size=manifest.page_size,
        max_seq_len=manifest.max_seq_len,
    )


def scenes(
    args: argparse.Namespace, requests: Sequence[BenchRequest], shape: CacheShape
) -> dict[str, dict[str, Limits]]:
    """The limits of each policy in each scene; pages include the null page."""
    budget = int(args.budget_mib * (1 << 20)) // shape.page_bytes + 1
    every = args.max_batch * -(-shape.max_seq_len // shape.page_size) + 1
    longest = args.max_batch * max(len(request.prompt) for request in requests)
    paged = Limits(budget, args.max_batch, args.batched_tokens)
    return {
        "budget": {"paged": paged, "padded": paged},
        "batch": {"paged": paged, "padded": Limits(every, args.max_batch, args.batched_tokens)},
        "static": {"paged": paged, "padded": Limits(every, args.max_batch, longest)},
    }


def time_policy(
    args: argparse.Namespace, policy: str, requests: Sequence[BenchRequest], limits: Limits
) -> dict[str, Any]:
    """Output tokens/s and step times of the engine under one policy: warm-up, then repetitions."""
    from pagedom import Engine, SamplingParams

    engine: Any = Engine(
        args.model,
        max_batch=limits.max_batch,
        max_batch_tokens=limits.max_batch_tokens,
        threads=args.threads,
        num_pages=limits.num_pages,
        cache="contiguous" if policy == "padded" else "paged",
    )
    try:
        rates, steps_ms = [], []
        for repetition in range(args.reps + 1):
            for request in requests:
                params = SamplingParams(max_tokens=request.num_out, ignore_eos=True)
                engine.submit(list(request.prompt), params)
            start = last = time.perf_counter()
            times = []
            while engine.step():
                now = time.perf_counter()
                times.append(1e3 * (now - last))
                last = now
            if repetition:  # the first one warms up
                rates.append(sum(r.num_out for r in requests) / (last - start))
                steps_ms.append(times)
    finally:
        engine.close()
    return {
        "out_tok_s": spread(rates),
        "step_p50_ms": spread([percentile(times, 50) for times in steps_ms]),
        "step_p99_ms": spread([percentile(times, 99) for times in steps_ms]),
    }


def run_scenes(
    args: argparse.Namespace, requests: Sequence[BenchRequest], shape: CacheShape
) -> dict[str, Any]:
    """Both policies in both scenes; timings only with a model."""
    results: dict[str, Any] = {}
    measured: dict[tuple[str, Limits], dict[str, Any]] = {}  # the paged side is in every scene
    for scene, sides in scenes(args, requests, shape).items():
        results[scene] = {}
        for policy, limits in sides.items():
            if (policy, limits) not in measured:
                measured[policy, limits] = measure(args, policy, requests, (shape, limits))
            results[scene][policy] = measured[policy, limits]
    return results


def measure(
    args: argparse.Namespace,
    policy: str,
    requests: Sequence[BenchRequest],
    setting: tuple[CacheShape, Limits],
) -> dict[str, Any]:
    """Counts of one policy under one setting, and timings when there is a model."""
    shape, limits = setting
    numbers = trace(policy, requests, shape, limits)
    numbers["max_batch_tokens"] = limits.max_batch_tokens
    numbers["pool_bytes"] = (limits.num_pages - 1) * shape.page_bytes
    numbers["batch_that_fits"] = batch_that_fits(policy, requests, shape, numbers["pool_bytes"])
    if args.model:
        numbers.update(time_policy(args, policy, requests, limits))
    return numbers


def table(results: dict[str, Any]) -> str:
    """The results as a markdown table."""
    rows = [
        "| scene | policy | pool MiB | reserved MiB (mean) | used MiB (mean) | batch | fits "
        "| tokens computed | padding | recomputed | steps | tokens/s | step p50 / p99 ms |"
    ]
    rows.append("|---" * (rows[0].count("|") - 1) + "|")
    for scene, policies in results.items():
        for policy, n in policies.items():
            rate = f"{n['out_tok_s']['median']:.0f}" if "out_tok_s" in n else "-"
            latency = "-"
            if "step_p50_ms" in n:
                latency = f"{n['step_p50_ms']['median']:.1f} / {n['step_p99_ms']['median']:.1f}"
            rows.append(
                f"| {scene} | {policy} | {mib(n['pool_bytes']):.0f} "
                f"| {mib(n['reserved_bytes_mean']):.0f} | {mib(n['used_bytes_mean']):.0f} "
                f"| {n['largest_batch']} | {n['batch_that_fits']} | {n['tokens_computed']} "
                f"| {n['tokens_padding']} | {n['tokens_recomputed']} | {n['steps']} "
                f"| {rate} | {latency} |"
            )
    return "\n".join(rows)


def parse_args() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="paged against padded on mixed lengths")
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--part", default="W3", help="which part of the workload")
    parser.add_argument("--model", type=Path, help="artefact; without it no timings")
    parser.add_argument("--budget-mib", type=float, default=240.0, help="bytes for the cache")
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--batched-tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the JSON report here")
    parser.add_argument("--plot", type=Path, help="write a PNG here")
    return parser.parse_args()


def main() -> None:
    """Measure, print the table, write report and picture."""
    args = parse_args()
    limit_threads(args.threads)
    workload = load_workload(args.workload)
    requests = workload.part(args.part)
    shape = shape_of(args.model) if args.model else _DEFAULT_SHAPE
    report = {
        "schema": 1,
        "machine": machine_facts(),
        "workload_digest": workload.digest,
        "part": args.part,
        "seed": workload.seed,
        "cache": vars(shape),
        "budget_mib": args.budget_mib,
        "max_batch": args.max_batch,
        "batched_tokens": args.batched_tokens,
        "threads": args.threads,
        "reps": args.reps,
        "scenes": run_scenes(args, requests, shape),
    }
    print(table(report["scenes"]))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    if args.plot:
        from plot_padded import plot

        plot(report, args.plot)


if __name__ == "__main__":
    main()
