"""Measuring one engine on a workload: warm-up, repetitions, latencies, disturbance, memory.

An engine is a function `run(requests, max_running)` that returns one stream a request: the
(time, token id) pairs in order of arrival, time being `time.perf_counter()`.

* A repetition is *clean* when other processes and guests took less of the machine than the
  limit. Disturbed repetitions are repeated (up to twice and one more); the fastest of them fill
  up when too few were clean. The record says how many were clean.
* prefill tok/s = prompt tokens / time until every request has its first token;
  decode tok/s = tokens after that moment / the time they took.
* One record is one JSON line, and the same fields come from every engine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from machine import CpuTimes, MemoryReading, machine_facts, process_tree
from workload import BenchRequest, Workload

Stream = list[tuple[float, int]]
Run = Callable[[Sequence[BenchRequest], int], list[Stream]]

WARM_UP_TOKENS = 24
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
)


@dataclass(frozen=True)
class EngineLabel:
    """What a record says about the engine that it measured."""

    engine: str
    version: str
    dtype: str
    threads: int
    notes: str = ""


@dataclass(frozen=True)
class Repeats:
    """How often to measure, and which share of the machine others may take in a clean run."""

    count: int = 3
    quiet_share: float = 0.08


def runner_parser(description: str) -> argparse.ArgumentParser:
    """The options that every runner has; `compare_peers.py` relies on them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path, required=True, help="artefact or model folder")
    parser.add_argument("--workload", type=Path, required=True, help="JSON of workload.py's form")
    parser.add_argument("--which", default="W1,W2,W3", help="parts to run, comma separated")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="fp32", help="fp32, bf16, …: label and engine setting")
    parser.add_argument("--quiet", type=float, default=0.08, help="clean below this disturbance")
    parser.add_argument("--out", default="-", help="append one JSON line a part here; - is stdout")
    return parser


def limit_threads(count: int) -> None:
    """Set the environment that numerical libraries read; call before importing any of them."""
    for name in _THREAD_VARIABLES:
        os.environ[name] = str(count)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0..100) by nearest rank; never a value that was not measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(q / 100 * (len(ordered) - 1)))]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def stream_metrics(
    start: float, end: float, num_in: int, streams: list[Stream]
) -> dict[str, float]:
    """Rates (tokens/s) and latencies (ms) of one repetition that ran from `start` to `end`."""
    num_out = sum(map(len, streams))
    metrics = {
        "wall_s": end - start,
        "n_in": float(num_in),
        "n_out": float(num_out),
        "out_tok_s": num_out / (end - start),
        "total_tok_s": (num_in + num_out) / (end - start),
    }
    firsts = [stream[0][0] - start for stream in streams if stream]
    gaps = [b[0] - a[0] for stream in streams for a, b in pairwise(stream)]
    if firsts:
        metrics["ttft_p50_ms"] = 1e3 * percentile(firsts, 50)
        metrics["ttft_p99_ms"] = 1e3 * percentile(firsts, 99)
        metrics["prefill_tok_s"] = num_in / max(firsts)
        all_started = start + max(firsts)
        later = [when for stream in streams for when, _ in stream if when > all_started]
        if later:
            metrics["decode_tok_s"] = len(later) / (max(later) - all_started)
    if gaps:
        metrics["itl_p50_ms"] = 1e3 * percentile(gaps, 50)
        metrics["itl_p99_ms"] = 1e3 * percentile(gaps, 99)
        metrics["itl_max_ms"] = 1e3 * max(gaps)
    return metrics


def measure_part(
    run: Run, requests: Sequence[BenchRequest], max_running: int, repeats: Repeats
) -> tuple[list[dict[str, float]], int, list[Stream]]:
    """Warm up, then repeat; returns the chosen repetitions, how many are clean, last streams."""
    run([request.shortened(WARM_UP_TOKENS) for request in requests], max_running)
    num_in = sum(len(request.prompt) for request in requests)
    clean: list[dict[str, float]] = []
    disturbed: list[dict[str, float]] = []
    streams: list[Stream] = []
    while len(clean) < repeats.count and len(clean) + len(disturbed) <= 2 * repeats.count:
        before = CpuTimes.take(process_tree(os.getpid()))
        start = time.perf_counter()
        streams = run(requests, max_running)
        end = time.perf_counter()
        after = CpuTimes.take(process_tree(os.getpid()))
        metrics = stream_metrics(start, end, num_in, streams)
        metrics["others_cpu"], metrics["steal"] = after.disturbance_since(before)
        quiet = metrics["others_cpu"] + metrics["steal"] < repeats.quiet_share
        (clean if quiet else disturbed).append(metrics)
    fill = sorted(disturbed, key=lambda m: m["wall_s"])[: repeats.count - len(clean)]
    return clean + fill, len(clean), streams


def bench(run: Run, workload: Workload, label: EngineLabel, args: argparse.Namespace) -> None:
    """Measure each chosen part and write its record."""
    repeats = Repeats(args.reps, args.quiet)
    for name in args.which.split(","):
        requests = workload.part(name)
        chosen, num_clean, streams = measure_part(run, requests, workload.max_running, repeats)
        memory = MemoryReading.of_tree(os.getpid())
        record = {
            **vars(label),
            "workload": name,
            "workload_digest": workload.digest,
            "seed": workload.seed,
            "reps": len(chosen),
            "clean_reps": num_clean,
            "metrics": {key: spread([m[key] for m in chosen]) for key in chosen[0]},
            "n_out_wanted": sum(request.num_out for request in requests),
            "peak_rss_mb": memory.peak_rss,
            "rss_mb": memory.rss,
            "rss_anon_mb": memory.anon,
            "first_ids": [token for _, token in streams[0][:32]],
            "output_ids": [[token for _, token in stream] for stream in streams],
            "machine": machine_facts(),
        }
        write_record(record, args.out)
        print(one_line(record), file=sys.stderr, flush=True)


def write_record(record: dict[str, Any], out: str) -> None:
    """Append a record to a file of JSON lines, or print it when `out` is "-"."""
    line = json.dumps(record)
    if out == "-":
        print(line)
        return
    with open(out, "a", encoding="utf-8") as file:
        file.write(line + "\n")


def one_line(record: dict[str, Any]) -> str:
    """A record for people."""

    def of(key: str) -> str:
        value = record["metrics"].get(key)
        return "-" if value is None else f"{value['median']:.1f}"

    return (
        f"{record['engine']} {record['dtype']} {record['workload']}: out {of('out_tok_s')} tok/s, "
        f"prefill {of('prefill_tok_s')}, decode {of('decode_tok_s')}, ttft p50 "
        f"{of('ttft_p50_ms')} ms, itl p50 {of('itl_p50_ms')} p99 {of('itl_p99_ms')} ms, peak "
        f"{record['peak_rss_mb']:.0f} MiB, tokens {of('n_out')}/{record['n_out_wanted']}, clean "
        f"{record['clean_reps']}/{record['reps']}"
    )
