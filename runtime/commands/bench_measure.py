"""What `run-om bench` runs and measures: workloads, time stamps of tokens, percentiles."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..engine import Engine

WARM_UP_TOKENS = 8
_SEED = 20261130


class WorkloadError(ValueError):
    """A workload file that cannot be used."""


@dataclass(frozen=True)
class BenchRequest:
    """A prompt (token ids) and the exact number of tokens to generate."""

    prompt: list[int]
    num_out: int


@dataclass(frozen=True)
class Workload:
    """Requests that arrive together; at most `max_running` at once, None = the usual limit."""

    name: str
    requests: list[BenchRequest]
    max_running: int | None = None


@dataclass(frozen=True)
class Measurement:
    """One workload on one engine; medians over the repetitions. None = not measurable."""

    workload: str
    cache: str
    reps: int
    requests: int
    prompt_tokens: int
    output_tokens: int
    wall_seconds: float
    output_tokens_per_second: float
    prefill_tokens_per_second: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    inter_token_p50_ms: float | None
    inter_token_p99_ms: float | None
    padding_tokens: int
    steps: int
    preemptions: int
    kv_peak_bytes: int
    peak_rss_bytes: int | None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, as --json prints them."""
        return asdict(self)


def synthetic_workload(vocab: int, num: int, prompt_tokens: int, output_tokens: int) -> Workload:
    """Return `num` requests of random tokens, the same at every call."""
    rng = np.random.default_rng(_SEED)
    prompts = rng.integers(0, vocab, (num, prompt_tokens)).tolist()
    requests = [BenchRequest(prompt, output_tokens) for prompt in prompts]
    return Workload(f"{num} x {prompt_tokens}+{output_tokens}", requests)


def load_workload(path: Path, names: Sequence[str]) -> list[Workload]:
    """Read the named workloads of a file, all for no names; raises WorkloadError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _no_workload(path, f"no JSON: {error}") from error
    if not isinstance(content, dict):
        raise _no_workload(path, f"a JSON {type(content).__name__}, not an object")
    known = [key for key, value in content.items() if isinstance(value, list)]
    absent = [name for name in names if name not in known]
    if absent or not known:
        raise WorkloadError(
            f"{path} has no workload {', '.join(absent)}: it has {', '.join(known) or 'none'}"
        )
    running = content.get("max_running")
    if running is not None and not _is_count(running):
        raise _no_workload(path, f"max_running is {running!r}, not a number of at least 1")
    for name in names or known:
        for index, entry in enumerate(content[name]):
            if not _is_request(entry):
                raise _no_workload(path, f"request {index} of {name} is {str(entry)[:60]}")
        if not content[name]:
            raise _no_workload(path, f"{name} holds no request")
    return [
        Workload(name, [BenchRequest(r["prompt"], r["n_out"]) for r in content[name]], running)
        for name in names or known
    ]


def _no_workload(path: Path, why: str) -> WorkloadError:
    return WorkloadError(
        f"{path} is no workload file ({why}): it must hold "
        '{"max_running": N, "NAME": [{"prompt": [token ids], "n_out": N}, …]}'
    )


def _is_request(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), list):
        return False
    return _is_count(entry.get("n_out")) and all(type(token) is int for token in entry["prompt"])


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def run_workload(engine: Engine, workload: Workload, reps: int, cache: str) -> Measurement:
    """Warm up, run `reps` times, and return the medians."""
    _stamps(engine, [BenchRequest(r.prompt, min(WARM_UP_TOKENS, r.num_out))
                     for r in workload.requests])  # fmt: skip
    return median_of([_run_once(engine, workload, cache) for _ in range(reps)])


def median_of(runs: Sequence[Measurement]) -> Measurement:
    """Return the medians of runs of one workload on one kind of cache."""
    every = [run.as_dict() for run in runs]
    medians: dict[str, Any] = {
        key: None if value is None else type(value)(statistics.median(run[key] for run in every))
        for key, value in every[0].items()
        if not isinstance(value, str)
    }
    return replace(runs[0], **{**medians, "reps": sum(run.reps for run in runs)})


def _run_once(engine: Engine, workload: Workload, cache: str) -> Measurement:
    _reset_peak_rss()
    before = engine.statistics()
    began = time.perf_counter()
    stamps = _stamps(engine, workload.requests)
    after = engine.statistics()
    return Measurement(
        workload=workload.name,
        cache=cache,
        reps=1,
        requests=len(workload.requests),
        padding_tokens=after.padding_tokens - before.padding_tokens,
        steps=after.steps - before.steps,
        preemptions=after.preemptions - before.preemptions,
        kv_peak_bytes=after.kv_high_water_bytes,
        peak_rss_bytes=_peak_rss(),
        **_numbers(workload, stamps, began),
    )


def _stamps(engine: Engine, requests: Sequence[BenchRequest]) -> list[list[float]]:
    """Run all requests, one step at a time; return the time of every token of each request."""
    from ..sampling_params import SamplingParams

    handles = [
        engine.submit(r.prompt, SamplingParams(max_tokens=r.num_out, ignore_eos=True))
        for r in requests
    ]
    stamps: list[list[float]] = [[] for _ in handles]
    running = list(zip(handles, stamps))
    while running:
        engine.step()
        now = time.perf_counter()
        still = []
        for handle, times in running:
            ended = handle.finished  # first: tokens that come with the end are polled below
            times.extend([now] * len(handle.poll_tokens()))
            handle.raise_if_failed()
            if not ended:
                still.append((handle, times))
        running = still
    return stamps


def _numbers(workload: Workload, stamps: list[list[float]], began: float) -> dict[str, Any]:
    num_in = sum(len(request.prompt) for request in workload.requests)
    num_out = sum(map(len, stamps))
    ended = max(times[-1] for times in stamps)
    first = np.array([times[0] - began for times in stamps])
    between = np.concatenate([np.diff(times) for times in stamps])
    return {
        "prompt_tokens": num_in,
        "output_tokens": num_out,
        "wall_seconds": ended - began,
        "output_tokens_per_second": num_out / (ended - began),
        "prefill_tokens_per_second": num_in / float(first.max()),
        "ttft_p50_ms": 1e3 * float(np.percentile(first, 50)),
        "ttft_p99_ms": 1e3 * float(np.percentile(first, 99)),
        "inter_token_p50_ms": 1e3 * float(np.percentile(between, 50)) if between.size else None,
        "inter_token_p99_ms": 1e3 * float(np.percentile(between, 99)) if between.size else None,
    }


def _reset_peak_rss() -> None:
    """Forget the peak of loading and of earlier runs, where the system can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def _peak_rss() -> int | None:
    """Return the most memory this process held, in bytes; None where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        if sys.platform == "win32":
            return None
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(peak if sys.platform == "darwin" else peak * 1024)
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024
