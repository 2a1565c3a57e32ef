"""The gear path against the plain path at full gears: the same steps in turn, in one process.

    python benchmarks/bench_gears.py --plain build/smollm2 --gears build/smollm2_gears
    python benchmarks/bench_gears.py --checkpoint CHECKPOINT        # compiles both for itself

Two engines hold the same requests and take the same steps, one step each, taking turns in going
first; so whatever else the machine does meets both. Steps that fill a gear exactly are compared:
prompts in steps of all the tokens of the largest gear, answers as one token of each sequence of the
widest decode gear. The others (the last prompts, the last answers) are padded to a gear and counted
in `whole_ratio` alone. A ratio is plain seconds / gears seconds, of a round.

Budget: gears reach 90 % of the plain path's tokens/s at full gears.
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
    """One engine, and tokens and seconds of its steps in the round in progress."""

    engine: Any
    steps: list[tuple[int, float]] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)

    def submit(self, prompts: list[list[int]], answer: int) -> None:
        """Queue the round's requests; nothing runs before `step`."""
        from pagedom import SamplingParams

        params = SamplingParams(max_tokens=answer, ignore_eos=True)
        self.steps = []
        self.requests = [self.engine.submit(prompt, params) for prompt in prompts]

    def step(self) -> bool:
        """Run and time one step; returns whether there was anything to do."""
        before = self.engine.statistics().computed_tokens
        start = time.perf_counter()
        worked: bool = self.engine.step()
        seconds = time.perf_counter() - start
        if worked:
            self.steps.append((self.engine.statistics().computed_tokens - before, seconds))
        return worked

    def of(self, tokens: int) -> list[float]:
        """Seconds of the steps that computed so many tokens."""
        return [seconds for size, seconds in self.steps if size == tokens]

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


def run_round(
    sides: list[Side], prompts: list[list[int]], answer: int, full: tuple[int, int]
) -> dict[str, float]:
    """Run the workload on both sides, step by step in turn; return tokens/s and ratios.

    full: tokens of a step that fills the prefill gear, and of one that fills the decode gear.
    """
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
    if [size for size, _ in plain.steps] != [size for size, _ in gears.steps]:
        raise SystemExit("the two engines took different steps, so they cannot be compared")
    whole = [sum(seconds for _, seconds in side.steps) for side in sides]
    prefill, decode = ([side.of(tokens) for side in sides] for tokens in full)
    result = {
        "plain_tok_s": answer * len(prompts) / whole[0],
        "gears_tok_s": answer * len(prompts) / whole[1],
        "whole_ratio": whole[0] / whole[1],
        "partial_steps": len(plain.steps) - len(prefill[0]) - len(decode[0]),
    }
    for name, (ours, theirs) in (("prefill", prefill), ("decode", decode)):
        if not ours:
            raise SystemExit(f"no {name} step fills its gear: take longer answers (--answer)")
        result |= {
            f"{name}_steps": len(ours),
            f"{name}_ratio": sum(ours) / sum(theirs),
            # Neighbouring steps, the middle of them: a disturbance spoils a pair, not a round.
            f"{name}_pair_ratio": median(p / g for p, g in zip(ours, theirs)),
        }
    seconds = [sum(side[0]) + sum(side[1]) for side in zip(prefill, decode)]
    return {"ratio": seconds[0] / seconds[1], **result}


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
            result = run_round(sides, prompts, args.answer, (tokens, seqs))
            if number:
                rounds.append(result)
                print(line(f"round {number:2d}", result), flush=True)
    return rounds


def line(name: str, result: dict[str, float]) -> str:
    """One result for people."""
    return (
        f"{name}: plain {result['plain_tok_s']:.0f} tok/s, gears {result['gears_tok_s']:.0f}, "
        f"ratio at full gears {result['ratio']:.3f} (prefill {result['prefill_ratio']:.3f}, pairs "
        f"{result['prefill_pair_ratio']:.3f}; decode {result['decode_ratio']:.3f}, pairs "
        f"{result['decode_pair_ratio']:.3f}), whole {result['whole_ratio']:.3f}"
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
