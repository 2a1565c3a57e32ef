"""`run-om bench`: throughput and latency of one artefact on one workload."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ..interruption import signals_held
from .bench_measure import (
    Measurement,
    Workload,
    load_workload,
    median_of,
    run_workload,
    synthetic_workload,
)
from .console import human_bytes, note
from .options import artefact_argument, batch_for, engine_options, open_engine, plan_option

CACHES = ("paged", "contiguous")
ROUNDS = 3
_COUNT = click.IntRange(min=1)

_EPILOG = """\b
Examples:
  run-om bench ARTEFACT
  run-om bench ARTEFACT --requests 32 --prompt-tokens 256 --output-tokens 64
  run-om bench ARTEFACT --workload workload.json --which W1,W3
  run-om bench ARTEFACT --vs-padded

A workload file is a JSON object with "max_running" and, for each name, a list of
{"prompt": [token ids], "n_out": tokens to generate}.
"""

_ROWS = (
    ("output tok/s", "output_tokens_per_second", "{:.1f}"),
    ("prefill tok/s", "prefill_tokens_per_second", "{:.1f}"),
    ("first token p50 ms", "ttft_p50_ms", "{:.1f}"),
    ("first token p99 ms", "ttft_p99_ms", "{:.1f}"),
    ("between tokens p50 ms", "inter_token_p50_ms", "{:.2f}"),
    ("between tokens p99 ms", "inter_token_p99_ms", "{:.2f}"),
    ("wall s", "wall_seconds", "{:.2f}"),
    ("prompt tokens", "prompt_tokens", "{}"),
    ("output tokens", "output_tokens", "{}"),
    ("padding tokens", "padding_tokens", "{}"),
    ("steps", "steps", "{}"),
    ("preemptions", "preemptions", "{}"),
    ("KV cache peak", "kv_peak_bytes", "bytes"),
    ("peak RSS", "peak_rss_bytes", "bytes"),
)


@click.command(short_help="Measure throughput and latency.", epilog=_EPILOG)
@artefact_argument
@click.option(
    "--workload",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Requests from a file instead of made-up ones.",
)
@click.option("--which", help="Names in the workload file, like W1,W3.  [default: all]")
@click.option(
    "--requests", type=_COUNT, default=8, show_default=True, help="How many requests to make up."
)
@click.option(
    "--prompt-tokens", type=_COUNT, default=128, show_default=True, help="Tokens of each prompt."
)
@click.option(
    "--output-tokens", type=_COUNT, default=64, show_default=True, help="Tokens of each answer."
)
@click.option(
    "--reps",
    type=_COUNT,
    help="Runs, of which the medians are shown.  [default: 1, or 3 with --vs-padded]",
)
@click.option(
    "--vs-padded", is_flag=True, help="Also run the contiguous, padded cache; they take turns."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each run.")
@plan_option
@engine_options
def bench(artefact: Path, **options: Any) -> None:
    """Measure the model in ARTEFACT.

    Greedy decoding with fixed output lengths; all requests arrive at once. A warm-up with short
    outputs comes first and is not measured.
    """
    if options["vs_padded"] and options["cache"] is not None:
        raise click.UsageError("--vs-padded runs both caches: leave --cache out.")
    caches = CACHES if options["vs_padded"] else (options["cache"] or CACHES[0],)
    workloads = _workloads(artefact, options)
    if options["plan"]:
        _plan(artefact, options, workloads, caches)
        return
    for workload in workloads:
        runner = _Runner(artefact, options, workload, len(workloads) > 1)
        results = runner.alternate() if len(caches) > 1 else [runner.measure(*caches)]
        if options["as_json"]:
            for result in results:
                click.echo(json.dumps({"artefact": str(artefact), **result.as_dict()}))
        else:
            click.echo(table(workload, results))


def _plan(
    artefact: Path,
    options: Mapping[str, Any],
    workloads: Sequence[Workload],
    caches: Sequence[str],
) -> None:
    """Show the ledger of each cache, for the workload that runs most sequences at once."""
    from .plan import end_plan, show_engine_plan

    most = max(_most_at_once(artefact, workload) for workload in workloads)
    chosen = [{**options, "cache": cache} for cache in caches]
    end_plan(*[show_engine_plan(artefact, each, max_batch=most) for each in chosen])


def _most_at_once(artefact: Path, workload: Workload) -> int:
    return workload.max_running or batch_for(artefact, len(workload.requests))


def _workloads(artefact: Path, options: Mapping[str, Any]) -> list[Workload]:
    if options["workload"] is not None:
        names = [name.strip() for name in (options["which"] or "").split(",") if name.strip()]
        return load_workload(options["workload"], names)
    if options["which"] is not None:
        raise click.UsageError("--which names a part of a workload file: give --workload too.")
    with signals_held():
        from ..artifact import Artifact

    model = Artifact.open(artefact).manifest.model
    shape = (options["requests"], options["prompt_tokens"], options["output_tokens"])
    return [synthetic_workload(model.vocab_size, *shape)]


@dataclass(frozen=True)
class _Runner:
    """Measures one workload; with a record in a file of its own where there are several runs."""

    artefact: Path
    options: Mapping[str, Any]
    workload: Workload
    one_of_many: bool

    def measure(self, cache: str) -> Measurement:
        """Return the medians of all runs on one kind of cache, loaded once."""
        return self._run(cache, self.options["reps"] or 1, "")

    def alternate(self) -> list[Measurement]:
        """Return the medians of both caches.

        They take turns in going first, and each run loads the model anew, so that neither order
        nor what else the machine does decides.
        """
        runs: dict[str, list[Measurement]] = {cache: [] for cache in CACHES}
        rounds = self.options["reps"] or ROUNDS
        for number in range(rounds):
            for cache in CACHES if number % 2 == 0 else reversed(CACHES):
                runs[cache].append(self._run(cache, 1, f", round {number + 1} of {rounds}"))
        return [median_of(each) for each in runs.values()]

    def _run(self, cache: str, reps: int, where: str) -> Measurement:
        workload, num = self.workload, len(self.workload.requests)
        options = {**self.options, "cache": cache, "page_trace": self._record(cache)}
        most = _most_at_once(self.artefact, workload)
        with open_engine(self.artefact, options, max_batch=most) as engine:
            note(f"{workload.name}: {num} request{'s' * (num != 1)}, {cache} cache{where} …")
            return run_workload(engine, workload, reps, cache)

    def _record(self, cache: str) -> Path | None:
        """Return where to record, with workload and cache in the name where there are several."""
        path: Path | None = self.options["page_trace"]
        if path is None:
            return None
        parts = [path.stem]
        if self.one_of_many:
            parts.append(re.sub(r"[^\w.+-]+", "_", self.workload.name))
        if self.options["vs_padded"]:
            parts.append(cache)
        return path.with_name("-".join(parts) + path.suffix)


def table(workload: Workload, results: Sequence[Measurement]) -> str:
    """Return the numbers as text, one column a run; with two runs also their quotient."""
    records = [result.as_dict() for result in results]
    heads = [str(record["cache"]) for record in records] + ["/".join(CACHES)] * (len(records) == 2)
    lines = [[workload.name, *heads]]
    for title, key, form in _ROWS:
        values = [record[key] for record in records]
        cells = [_cell(value, form) for value in values]
        if len(values) == 2:
            cells.append(f"{values[0] / values[1]:.2f}" if values[0] and values[1] else "")
        lines.append([title, *cells])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:]))]
        ).rstrip()
        for line in lines
    ) + "\n"  # fmt: skip


def _cell(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    return human_bytes(int(value)) if form == "bytes" else form.format(value)
