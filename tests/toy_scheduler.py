"""A toy scheduler: three sequences through a trace of steps, as inputs of a graph.

The trace mixes prefill, chunked prefill and decode on scattered pages; with gears each step is
padded as the runtime pads it, with a dummy sequence on the null page.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from dense_llama import dense_logits

from pagedom.models.config import ModelConfig

TABLE_WIDTH, SEQUENCES = 3, 3
NUM_PAGES = 1 + TABLE_WIDTH * SEQUENCES
# Padding in each: 200 tokens are more than a row of the table holds at page sizes 8 to 32.
GEARS = ((4, 4), (24, 3), (40, 4), (200, 4))
Step = list[tuple[str, int]]
# (sequence, new tokens) of each step: prefill, decode, a prompt beside decodes, a pause, a chunk.
TRACE: list[Step] = [
    [("a", 20), ("b", 7)],
    [("a", 1), ("b", 1)],
    [("a", 1), ("c", 13)],
    [("b", 1), ("c", 6), ("a", 1)],
    [("c", 1), ("a", 1)],
    [("b", 1)],
]


class ToyScheduler:
    """Made-up tokens of sequences a, b and c, and the pages they lie in."""

    def __init__(
        self,
        vocab_size: int,
        page_size: int,
        gears: Sequence[tuple[int, int]] = (),
        padding_slot: int = -1,
        seed: int = 3,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.table = (1 + rng.permutation(NUM_PAGES - 1)).reshape(SEQUENCES, TABLE_WIDTH)
        self.ids = {name: rng.integers(0, vocab_size, 60).tolist() for name in "abc"}
        self.lengths = dict.fromkeys("abc", 0)
        self._page_size, self._gears, self._padding_slot = page_size, gears, padding_slot

    def wanted(self, step: Step, config: ModelConfig, weights: dict[str, np.ndarray]) -> np.ndarray:
        """Return the dense model's logits [sequences, V] behind the inputs of a step."""
        texts = [self.ids[name][: self.lengths[name]] for name, _ in step]
        return np.array([dense_logits(config, weights, text)[-1] for text in texts])

    def inputs(self, step: Step) -> dict[str, np.ndarray]:
        """Append the step's tokens to its sequences; return what computes them, by source."""
        size = self._page_size
        ids, positions, slots, q_lens = [], [], [], []
        for name, count in step:
            row = self.table["abc".index(name)]
            for position in range(self.lengths[name], self.lengths[name] + count):
                ids.append(self.ids[name][position])
                positions.append(position)
                slots.append(row[position // size] * size + position % size)
            self.lengths[name] += count
            q_lens.append(count)
        table = [self.table["abc".index(name)] for name, _ in step]
        kv_lens = [self.lengths[name] for name, _ in step]
        ends = np.cumsum(q_lens).tolist()
        logits_rows = [end - 1 for end in ends]
        for tokens, seqs in self._gear(len(ids), len(step)):
            dummy, spare = tokens - len(ids), seqs - len(step)
            visible = min(dummy, TABLE_WIDTH * size)
            ids += [0] * dummy
            positions += [place % visible for place in range(dummy)]
            slots += [self._padding_slot] * dummy
            table += [np.zeros(TABLE_WIDTH, int)] * spare
            kv_lens += ([visible] + [0] * (spare - 1))[:spare]
            ends += [tokens] * spare
            logits_rows += [0] * spare
        named = {
            "input_ids": ids,
            "positions": positions,
            "slot_mapping": slots,
            "block_table": table,
            "cu_seqlens": [0, *ends],
            "seq_ends": ends,
            "kv_lens": kv_lens,
            "token_seqs": np.repeat(np.arange(len(ends)), np.diff([0, *ends])),
            "token_lens": np.array(positions) + 1,
            "logits_rows": logits_rows,
        }
        return {name: np.array(value) for name, value in named.items()}

    def _gear(self, tokens: int, seqs: int) -> list[tuple[int, int]]:
        fitting = [
            gear
            for gear in self._gears
            if (tokens == gear[0] and seqs <= gear[1]) or (tokens < gear[0] and seqs < gear[1])
        ]
        return sorted(fitting)[:1]
