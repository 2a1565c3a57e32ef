"""OpenVINO GenAI's ContinuousBatchingPipeline as a peer: paged attention, continuous batching.

Runs in the peer's own environment (openvino-genai, numpy); pagedom is not needed there.
`--dtype` sets the inference precision, the weights are those of `--model`. GenAI's cache is u8 by
default: give `--kv f32` or `--kv bf16` to compare like with like.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from measuring import EngineLabel, Stream, bench, limit_threads, runner_parser
from workload import BenchRequest, load_workload

_PRECISION = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}


def make_pipeline(args: Any, max_running: int) -> Any:
    """Load the model with one stream, fused prefill and decode, and no prefix cache."""
    import openvino_genai

    properties = {
        "INFERENCE_NUM_THREADS": args.threads,
        "INFERENCE_PRECISION_HINT": args.precision or _PRECISION.get(args.dtype, "f32"),
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    if args.kv != "default":
        properties["KV_CACHE_PRECISION"] = args.kv
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = max_running
    scheduler.max_num_batched_tokens = args.batched_tokens
    scheduler.cache_size = args.cache_gb
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    return openvino_genai.ContinuousBatchingPipeline(str(args.model), scheduler, "CPU", properties)


def make_run(pipeline: Any) -> Any:
    """The engine function of `measuring`: greedy, fixed lengths, end-of-sequence ignored."""
    import numpy as np
    import openvino
    import openvino_genai

    def run(requests: Sequence[BenchRequest], max_running: int) -> list[Stream]:
        handles = []
        for index, request in enumerate(requests):
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = request.num_out
            config.ignore_eos = True
            config.do_sample = False
            ids = openvino.Tensor(np.array([request.prompt], dtype=np.int64))
            handles.append(pipeline.add_request(index, ids, config))
        streams: list[Stream] = [[] for _ in requests]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            now = time.perf_counter()
            for stream, handle in zip(streams, handles):
                while handle.can_read():
                    for output in handle.read().values():
                        stream.extend((now, token) for token in output.generated_ids)
        return streams

    return run


def main() -> None:
    """Measure GenAI on the chosen parts."""
    parser = runner_parser("measure OpenVINO GenAI's continuous batching")
    parser.add_argument("--kv", default="default", help="cache precision: f32, bf16, u8, default")
    parser.add_argument("--precision", help="inference precision; by default from --dtype")
    parser.add_argument("--cache-gb", type=int, default=1)
    parser.add_argument("--batched-tokens", type=int, default=256)
    args = parser.parse_args()
    limit_threads(args.threads)
    import openvino_genai

    workload = load_workload(args.workload)
    start = time.perf_counter()
    pipeline = make_pipeline(args, workload.max_running)
    notes = f"kv={args.kv} batched_tokens={args.batched_tokens}"
    notes += f" load={time.perf_counter() - start:.1f}s"
    version = openvino_genai.__version__
    label = EngineLabel("openvino-genai", version, args.dtype, args.threads, notes)
    bench(make_run(pipeline), workload, label, args)


if __name__ == "__main__":
    main()
