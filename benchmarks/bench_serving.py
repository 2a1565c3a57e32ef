"""pagedom's Engine on a workload: throughput, time to first token, time between tokens, memory.

    python benchmarks/bench_serving.py --model build/smollm2_bf16 --workload workload.json

The loop is the one of a server: the engine runs by itself after `start()`, and a listener, called
once a step on the engine's thread, collects and stamps the new tokens.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from measuring import EngineLabel, Run, Stream, bench, limit_threads, runner_parser
from workload import BenchRequest, Workload, load_workload


def make_engine(args: argparse.Namespace, workload: Workload) -> Any:
    """Open the artefact for the workload's batch size."""
    from pagedom import Engine

    options: dict[str, Any] = {
        "max_batch": args.max_batch or workload.max_running,
        "max_batch_tokens": args.batched_tokens,
        "threads": args.threads,
    }
    if args.pages is not None:
        options["num_pages"] = args.pages
    return Engine(args.model, **options)


def make_run(engine: Any) -> Run:
    """The engine function of `measuring`: greedy, fixed lengths, end-of-sequence ignored."""
    from pagedom import SamplingParams

    def run(requests: Sequence[BenchRequest], max_running: int) -> list[Stream]:
        streams: list[Stream] = [[] for _ in requests]
        open_pairs: list[tuple[Any, Stream]] = []
        ended = threading.Event()

        def heard() -> None:
            """Called by the engine after each step."""
            now = time.perf_counter()
            for handle, stream in open_pairs:
                stream.extend((now, token) for token in handle.poll_tokens())
            open_pairs[:] = [pair for pair in open_pairs if not pair[0].finished]
            if not open_pairs:
                ended.set()

        listener.append(heard)
        handles = [
            engine.submit(list(r.prompt), SamplingParams(max_tokens=r.num_out, ignore_eos=True))
            for r in requests
        ]
        open_pairs += zip(handles, streams)
        engine.start()
        ended.wait()
        engine.stop()
        listener.clear()
        for handle in handles:
            handle.raise_if_failed()
        return streams

    listener: list[Callable[[], None]] = []
    engine.add_listener(lambda: [each() for each in listener])
    return run


def main() -> None:
    """Measure pagedom on the chosen parts."""
    parser = runner_parser("measure pagedom's engine on a workload")
    parser.add_argument("--batched-tokens", type=int, default=256, help="most tokens of a step")
    parser.add_argument(
        "--max-batch", type=int, help="most sequences at once; by default the workload's"
    )
    parser.add_argument("--pages", type=int, help="pages of the cache; by default the engine's")
    args = parser.parse_args()
    limit_threads(args.threads)
    from importlib.metadata import version

    workload = load_workload(args.workload)
    start = time.perf_counter()
    engine = make_engine(args, workload)
    at_once = args.max_batch or workload.max_running
    loaded = time.perf_counter() - start
    notes = f"batched_tokens={args.batched_tokens} max_batch={at_once} load={loaded:.1f}s"
    label = EngineLabel("pagedom", version("pagedom"), args.dtype, args.threads, notes)
    try:
        bench(make_run(engine), workload, label, args)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
