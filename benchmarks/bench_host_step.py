"""Host work of one decode step: schedule, fill, commit; model and sampler cost nothing here.

    python benchmarks/bench_host_step.py --out host_step.json

The device is replaced by a constant answer, so what is timed is all that the engine itself does
between two executions: planning, taking pages, filling the staging buffer, finding what ended,
waking consumers. Sequences cross page boundaries at their own times, as they do in service.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from machine import machine_facts

from pagedom.runtime.backend import ModelFacts
from pagedom.runtime.engine_core import EngineCore
from pagedom.runtime.engine_options import EngineOptions
from pagedom.runtime.kv_cache import KvCacheSpec
from pagedom.runtime.packed_batch import BatchLayout, PackedBatch
from pagedom.runtime.sampling_params import SamplingParams

VOCAB = 32_000
BUDGET_US = 100.0


class ConstantOutput:
    """Token 7 for every row."""

    def __init__(self, max_batch: int) -> None:
        self._tokens = np.full(max_batch, 7, np.int32)

    def argmax(self) -> np.ndarray:
        return self._tokens

    def logits(self, rows: np.ndarray) -> np.ndarray:
        raise NotImplementedError("greedy requests need no logits")


class NoDevice:
    """A backend that computes nothing."""

    def __init__(self, max_seq_len: int, page_size: int, max_batch: int) -> None:
        self.geometry = ModelFacts(
            vocab_size=VOCAB,
            max_seq_len=max_seq_len,
            table_width=-(-max_seq_len // page_size),
            cache=KvCacheSpec(1, 1, 64, "float16", page_size),
            eos_ids=(2,),
        )
        self._output = ConstantOutput(max_batch)

    def open(self, num_pages: int, layout: BatchLayout, least_pages: int = 0) -> PackedBatch:
        self.num_pages = num_pages
        return PackedBatch(layout)

    def launch(self, batch: PackedBatch) -> None:
        pass

    def wait(self) -> ConstantOutput:
        return self._output

    def close(self) -> None:
        pass


def running_core(batch: int, args: argparse.Namespace) -> EngineCore:
    """Return a core with `batch` sequences in their decode phase."""
    whole = -(-args.max_seq_len // args.page_size)
    # Room for every prompt in the first step: only the decode steps after it are timed.
    options = EngineOptions(
        max_batch=batch, max_batch_tokens=batch * args.max_seq_len, num_pages=1 + batch * whole
    )
    backend = NoDevice(args.max_seq_len, args.page_size, batch)
    core = EngineCore(backend, options.resolve(backend.geometry))
    rng = np.random.default_rng(args.seed)
    params = SamplingParams(max_tokens=args.max_seq_len)  # longer than what is timed
    for length in rng.integers(1, args.max_seq_len // 2, batch).tolist():
        core.submit(rng.integers(3, VOCAB, length).astype(np.int32), params)
    core.step()
    if core.rows.count != batch or core.rows.num_prefilling:
        raise RuntimeError(
            f"only {core.rows.count} of {batch} sequences reached their decode phase"
        )
    return core


def measure(batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return microseconds of a step at `batch` sequences."""
    times = []
    for _ in range(args.reps):
        core = running_core(batch, args)
        for _ in range(20):
            core.step()
        for _ in range(args.steps):
            start = time.perf_counter_ns()
            core.step()
            times.append((time.perf_counter_ns() - start) / 1000)
    times.sort()
    return {
        "batch": batch,
        "samples": len(times),
        "median_us": round(median(times), 1),
        "least_us": round(times[0], 1),
        "p90_us": round(times[int(len(times) * 0.9)], 1),
        "greatest_us": round(times[-1], 1),
    }


def main() -> None:
    """Measure and print a table; write JSON with --out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="1,16,64,256", help="batch sizes")
    parser.add_argument("--steps", type=int, default=300, help="steps timed a repetition")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--max-seq-len", type=int, default=2048)
    parser.add_argument("--page-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [measure(int(batch), args) for batch in args.batches.split(",")]
    for row in rows:
        print(
            f"B {row['batch']:4d}  median {row['median_us']:7.1f} us  "
            f"p90 {row['p90_us']:7.1f}  greatest {row['greatest_us']:7.1f}"
        )
    record = {
        "benchmark": "host_step",
        "machine": machine_facts(),
        "seed": args.seed,
        "max_seq_len": args.max_seq_len,
        "page_size": args.page_size,
        "budget_us": BUDGET_US,
        "results": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
