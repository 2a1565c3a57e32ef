"""The worked example: four prompts, used by tests, docs and the tutorial."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkedExample:
    """Prompts of 128, 64, 256 and 32 tokens, their packing, and the decode step after it."""

    prompts: tuple[int, ...] = (128, 64, 256, 32)
    cu_seqlens: tuple[int, ...] = (0, 128, 192, 448, 480)
    tokens: int = 480
    longest: int = 256
    padded_tokens: int = 1024
    pages: dict[int, int] = field(default_factory=lambda: {16: 30, 128: 5})  # page size: pages
    logits_rows: tuple[int, ...] = (127, 191, 447, 479)
    decode_cu_seqlens: tuple[int, ...] = (0, 1, 2, 3, 4)
    decode_kv_lens: tuple[int, ...] = (129, 65, 257, 33)
    decode_positions: tuple[int, ...] = (128, 64, 256, 32)
    decode_pages: int = 34  # at a page size of 16: each of the four takes one more
