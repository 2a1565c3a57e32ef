"""Workloads: what is asked of an engine, as token ids, so that no tokenizer takes part.

A workload file is one JSON object: `max_running`, `seed`, and named lists of requests
`{"prompt": [ids], "n_out": count}`. Every engine is given the same file.

    python benchmarks/workload.py --vocab-size 49152 --out workload.json

makes one with random ids, for users without any other:

* W1: one request, 128 prompt tokens, 128 new tokens
* W2: eight requests of 128 / 128, all at once
* W3: 32 requests, prompts of 16..512 and answers of 16..256 tokens, all at once,
  at most 16 running
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 20261130
MAX_RUNNING = 16
_FIRST_ID = 64  # below lie the special tokens and single bytes of most vocabularies


@dataclass(frozen=True)
class BenchRequest:
    """One request: prompt ids, and how many tokens to generate (end-of-sequence ignored)."""

    prompt: tuple[int, ...]
    num_out: int

    def shortened(self, num_out: int) -> BenchRequest:
        """The same prompt with at most `num_out` new tokens, for a warm-up."""
        return BenchRequest(self.prompt, min(num_out, self.num_out))


@dataclass(frozen=True)
class Workload:
    """Named lists of requests, and the most that may run at once."""

    parts: dict[str, tuple[BenchRequest, ...]]
    max_running: int
    seed: int | None
    digest: str

    def part(self, name: str) -> tuple[BenchRequest, ...]:
        """The requests called `name`; exits with the known names otherwise."""
        if name not in self.parts:
            raise SystemExit(f"workload has no part {name!r}: it has {', '.join(self.parts)}")
        return self.parts[name]

    @property
    def longest(self) -> int:
        """Most tokens that any one sequence reaches, prompt and answer together."""
        return max(len(r.prompt) + r.num_out for part in self.parts.values() for r in part)


def load_workload(path: Path) -> Workload:
    """Read a workload file."""
    return from_json(json.loads(path.read_text()))


def from_json(data: dict[str, Any]) -> Workload:
    """A workload from the parsed file; every key that holds a list is a part."""
    parts = {
        name: tuple(BenchRequest(tuple(r["prompt"]), int(r["n_out"])) for r in requests)
        for name, requests in data.items()
        if isinstance(requests, list)
    }
    plain = {
        name: [[list(r.prompt), r.num_out] for r in requests] for name, requests in parts.items()
    }
    digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]
    return Workload(parts, int(data.get("max_running", MAX_RUNNING)), data.get("seed"), digest)


def generate(vocab_size: int, seed: int = SEED) -> dict[str, Any]:
    """The content of a workload file with uniformly random token ids."""
    if vocab_size <= _FIRST_ID:
        raise SystemExit(f"--vocab-size is {vocab_size}: it must be above {_FIRST_ID}")
    rng = random.Random(seed)

    def request(num_in: int, num_out: int) -> dict[str, Any]:
        ids = [rng.randrange(_FIRST_ID, vocab_size) for _ in range(num_in)]
        return {"prompt": ids, "n_out": num_out}

    return {
        "seed": seed,
        "max_running": MAX_RUNNING,
        "W1": [request(128, 128)],
        "W2": [request(128, 128) for _ in range(8)],
        "W3": [request(rng.randint(16, 512), rng.randint(16, 256)) for _ in range(32)],
    }


def main() -> None:
    """Write a workload file and say what it holds."""
    parser = argparse.ArgumentParser(description="make a workload of random token ids")
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    data = generate(args.vocab_size, args.seed)
    args.out.write_text(json.dumps(data))
    workload = from_json(data)
    for name, requests in workload.parts.items():
        num_in = sum(len(r.prompt) for r in requests)
        num_out = sum(r.num_out for r in requests)
        print(f"{name}: {len(requests)} requests, {num_in} tokens in, {num_out} out")
    print(f"digest {workload.digest}")


if __name__ == "__main__":
    main()
