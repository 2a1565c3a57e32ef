"""The gear path against the plain path at full gears: the same steps in turn, in one process.

    python benchmarks/bench_gears.py --plain build/smollm2 --gears build/smollm2_gears
    python benchmarks/bench_gears.py --checkpoint CHECKPOINT        # compiles both for itself

Two engines hold the same requests and take the same steps, one step each, taking turns in going
first; so whatever else the machine does meets both. Every step fills a gear exactly: prompts come
as steps of all the tokens of the largest gear, answers as one token of each sequence of the widest
decode gear. A round is the whole workload; its ratio is plain seconds / gears seconds.

Budget: gears reach 90 % of the plain path's tokens/s.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from machine import machine_facts
from measuring import limit_threads, percentile, spread

BUDGET_RATIO = 0.9
SEQS = 16  # B of the decode gear that --checkpoint compiles
TOKENS = 256  # T of its prefill gear
PROMPT, ANSWER = 128, 64  # tokens of a request
_FIRST_ID = 64  # below lie special tokens and single bytes


@dataclass
class Side:
    """One engine and the seconds of its steps in the round in progress."""

    engine: Any
    prefill_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)

    def submit(self, prompts: list[list[int]], answer: int) -> None:
        """Queue the round's requests; nothing runs before `step`."""
        from pagedom import SamplingParams

        params = SamplingParams(max_tokens=answer, ignore_eos=True)
        self.prefill_s, self.decode_s = [], []
        self.requests = [self.engine.submit(prompt, params) for prompt in prompts]

    def step(self) -> bool:
        """Run and time one step; a step in which a prompt is still computed is a prefill step."""
        prefill = any(request.timings.first_token is None for request in self.requests)
        start = time.perf_counter()
        worked: bool = self.engine.step()
        seconds = time.perf_counter() - start
        if worked:
            (self.prefill_s if prefill else self.decode_s).append(seconds)
        return worked

    def tokens(self) -> list[list[int]]:
        """The answers of the round."""
        return [request.result().token_ids for request in self.requests]


def full_gears(artefact: Path) -> tuple[int, int]:
    """Return (T of the largest gear, B of the widest gear whose T is its B)."""
    from pagedom.runtime.artifact import Artifact

    gears = Artifact.open(artefact).manifest.gears
    decode = [gear["B"] for gear in gears if gear["T"] == gear["B"]]
    if not decode:
        raise SystemExit(f"{artefact} has no gear for decode steps (T = B), only {list(gears)}")
    return max(gear["T"] for gear in gears), max(decode)


def run_round(sides: list[Side], prompts: list[list[int]], answer: int) -> dict[str, float]:
    """Run the workload on both sides, step by step in turn; return tokens/s and ratios."""
    plain, gears = sides
    for side in sides:
        side.submit(prompts, answer)
    number, working = 0, True
    while working:
        order = sides if number % 2 == 0 else sides[::-1]
        worked = [side.step() for side in order]
        working = any(worked)
        number += 1
    if plain.tokens() != gears.tokens():
        raise SystemExit("the two artefacts give different tokens: they are not of one model")
    if (len(plain.prefill_s), len(plain.decode_s)) != (len(gears.prefill_s), len(gears.decode_s)):
        raise SystemExit("the two engines took different steps, so they cannot be compared")
    made = answer * len(prompts)
    whole = [sum(side.prefill_s) + sum(side.decode_s) for side in sides]
    return {
        "plain_tok_s": made / whole[0],
        "gears_tok_s": made / whole[1],
        "ratio": whole[0] / whole[1],
        "prefill_ratio": sum(plain.prefill_s) / sum(gears.prefill_s),
        "decode_ratio": sum(plain.decode_s) / sum(gears.decode_s),
        # Neighbouring steps, and the middle of them: a disturbance spoils one pair, not a round.
        "decode_pair_ratio": median(p / g for p, g in zip(plain.decode_s, gears.decode_s)),
        "decode_steps": len(plain.decode_s),
        "prefill_steps": len(plain.prefill_s),
    }


def measure(args: argparse.Namespace, plain: Path, gears: Path) -> list[dict[str, float]]:
    """Open both engines, warm up, and run the rounds."""
    from pagedom import Engine
    from pagedom.runtime.artifact import Artifact

    tokens, seqs = full_gears(gears)
    facts = Artifact.open(gears).manifest
    rng = random.Random(args.seed)
    settings: dict[str, Any] = {
        "max_batch": seqs,
        "max_batch_tokens": tokens,
        "threads": args.threads,
        "num_pages": facts.num_pages or None,
    }
    with ExitStack() as stack:
        sides = [Side(stack.enter_context(Engine(folder, **settings))) for folder in (plain, gears)]
        rounds = []
        for number in range(args.rounds + 1):
            prompts = [
                [rng.randrange(_FIRST_ID, facts.model.vocab_size) for _ in range(PROMPT)]
                for _ in range(seqs)
            ]
            # The first round warms up: pages are touched, kernels chosen.
            result = run_round(sides, prompts, args.answer)
            if number:
                rounds.append(result)
                print(line(f"round {number:2d}", result), flush=True)
    return rounds


def line(name: str, result: dict[str, float]) -> str:
    """One result for people."""
    return (
        f"{name}: plain {result['plain_tok_s']:.0f} tok/s, gears {result['gears_tok_s']:.0f}, "
        f"ratio {result['ratio']:.3f} (prefill {result['prefill_ratio']:.3f}, decode "
        f"{result['decode_ratio']:.3f}, pairs of decode steps {result['decode_pair_ratio']:.3f})"
    )


def compiled(checkpoint: str, dtype: str, folder: Path) -> tuple[Path, Path]:
    """Compile a checkpoint twice, for any shape and with two gears."""
    gears = f"{SEQS},{SEQS};{TOKENS},{SEQS + 1}"
    places = folder / "plain", folder / "gears"
    for place, extra in zip(places, ([], ["--gears", gears, "--num-pages", "400"])):
        command = [sys.executable, "-c", "from pagedom.compiler.cli import main; main()"]
        options = ["--dtype", dtype, "--max-batch", str(SEQS), "-o", str(place)]
        subprocess.run([*command, checkpoint, *options, *extra], check=True)
    return places


def report(args: argparse.Namespace, rounds: list[dict[str, float]], gears: Path) -> dict[str, Any]:
    """The JSON report."""
    from pagedom.runtime.artifact import Artifact

    manifest = Artifact.open(gears).manifest
    ratios = [each["ratio"] for each in rounds]
    return {
        "schema": 2,
        "benchmark": "gears",
        "machine": machine_facts(),
        "model": manifest.name,
        "dtype": manifest.dtype,
        "gears": [dict(gear) for gear in manifest.gears],
        "prompt_tokens": PROMPT,
        "answer_tokens": args.answer,
        "seed": args.seed,
        "threads": args.threads,
        "rounds": len(rounds),
        "budget_ratio": BUDGET_RATIO,
        "quartiles_of_ratio": [percentile(ratios, 25), percentile(ratios, 75)],
        "results": {key: spread([each[key] for each in rounds]) for key in rounds[0]},
        "ratios": [round(each, 4) for each in ratios],
    }


def parse_args() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", type=Path, help="artefact for any shape")
    parser.add_argument("--gears", type=Path, help="artefact of the same model with gears")
    parser.add_argument("--checkpoint", help="compile both of this, into a temporary folder")
    parser.add_argument("--dtype", default="bfloat16", help="of --checkpoint")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--answer", type=int, default=ANSWER, help="tokens of an answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the JSON report here")
    args = parser.parse_args()
    if (args.plain is None) != (args.gears is None) or (args.plain is None) == (
        args.checkpoint is None
    ):
        parser.error("give --plain and --gears, or --checkpoint")
    return args


def main() -> None:
    """Measure, print, write the report."""
    args = parse_args()
    limit_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        plain, gears = args.plain, args.gears
        if args.checkpoint:
            plain, gears = compiled(args.checkpoint, args.dtype, Path(folder))
        rounds = measure(args, plain, gears)
        data = report(args, rounds, gears)
    print(line("median", {key: value["median"] for key, value in data["results"].items()}))
    if args.out:
        args.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
