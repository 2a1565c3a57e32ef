"""Settings of an engine, and how they become sizes."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from .acl.options import AclOptions
from .backend import ModelFacts
from .cache_room import least_pages
from .device import WAIT_LIMIT_S
from .engine_core import CoreOptions
from .number_text import counted
from .step_draft import SchedulerPolicy

DEFAULT_MAX_BATCH = 16
DEFAULT_MAX_BATCH_TOKENS = 256
DEFAULT_AVERAGE_LENGTH = 512  # tokens of a sequence, when nothing says how big the cache shall be

MOST_SLOTS = (1 << 31) - 1  # slot numbers are int32 in every artefact

_COUNTS = ("max_batch", "max_batch_tokens", "num_pages", "kv_bytes", "average_length")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineOptions:
    """Settings of `Engine`.

    executor: "openvino" (None) or "oracle", what runs the graph of an artefact for the target host;
    refused for one of a chip, as threads are. device_id: NPU.
    max_batch: most sequences at once; None takes 16, or what the artefact was compiled for where
    that is less. The cache is sized for it.
    max_batch_tokens: most tokens of a step; None takes 256, or 2 x max_batch where that is more.
    num_pages, kv_bytes: size of the cache, one of them, the null page included; None sizes it for
    max_batch sequences of average_length tokens, times 1.5, or less where the device has no more
    free memory.
    cache: "paged", or "contiguous" for the padded baseline. threads: of the executor, 0 = all.
    acl: everything about the host device, in place of executor, threads and checked (tests).
    checked: validate every batch, and keep a ledger of the device's resources. page_trace: a file
    to record who holds which page.
    step_timeout_s: seconds after which an execution counts as hanging; the engine then ends every
    request and closes. self_test: see at load time whether the model writes its pages in place;
    None does it everywhere but on the host device.
    """

    executor: str | None = None
    device_id: int = 0
    max_batch: int | None = None
    max_batch_tokens: int | None = None
    num_pages: int | None = None
    kv_bytes: int | None = None
    average_length: int | None = None
    cache: Literal["paged", "contiguous"] = "paged"
    threads: int | None = None
    acl: AclOptions | None = None
    checked: bool = False
    reserve_pages: float = 1.0
    page_trace: str | Path | None = None
    step_timeout_s: float = WAIT_LIMIT_S
    self_test: bool | None = None

    def __post_init__(self) -> None:
        if self.cache not in ("paged", "contiguous"):
            raise ValueError(f"cache is {self.cache!r}: use 'paged' or 'contiguous'")
        if not self.step_timeout_s > 0:
            raise ValueError(
                f"step_timeout_s is {self.step_timeout_s}: it must be more than 0 seconds, such as "
                f"the default {WAIT_LIMIT_S:g}"
            )
        if self.num_pages is not None and self.kv_bytes is not None:
            raise ValueError(
                f"num_pages ({self.num_pages}) and kv_bytes ({self.kv_bytes}) both say how big the "
                "KV cache is: give one of them"
            )
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{name} is {value!r}: it must be an integer of at least 1")
        if self.num_pages == 1:
            raise ValueError(
                "num_pages is 1: at least 2 pages are needed, because page 0 is the null page, "
                "which holds no tokens"
            )

    @classmethod
    def of(cls, **settings: Any) -> EngineOptions:
        """Return options from keywords; raises TypeError naming an unknown one and a near match."""
        names = [field.name for field in fields(cls)]
        for name in settings:
            if name not in names:
                near = difflib.get_close_matches(name, names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
                raise TypeError(f"unknown engine setting {name!r}{hint}")
        return cls(**settings)

    def resolve(self, geometry: ModelFacts) -> CoreOptions:
        """Return sizes for a model, with a warning if they are small for it.

        Raises ValueError when they cannot work.
        """
        sizes = self.sizes(geometry)
        _warn_if_small(sizes.num_pages, sizes.policy)
        return sizes

    def sizes(self, geometry: ModelFacts) -> CoreOptions:
        """Do what `resolve` does without a word."""
        most = geometry.max_batch or DEFAULT_MAX_BATCH
        max_batch = self.max_batch or min(most, DEFAULT_MAX_BATCH)
        if geometry.max_batch and max_batch > geometry.max_batch:
            raise ValueError(
                f"max_batch is {max_batch}, but the artefact was compiled for at most "
                f"{geometry.max_batch} sequences: lower it or compile again with --max-batch"
            )
        policy = SchedulerPolicy(
            max_batch=max_batch,
            max_batch_tokens=self._max_batch_tokens(geometry, max_batch),
            page_size=geometry.cache.page_size,
            max_seq_len=geometry.max_seq_len,
            reserve_pages=self.reserve_pages,
        )
        num_pages = self._num_pages(geometry, max_batch)
        most_pages = MOST_SLOTS // policy.page_size
        if num_pages > most_pages:
            raise ValueError(
                f"the KV cache would have {num_pages} pages, but slots are numbered in 32 bits, so "
                f"at most {most_pages} pages of {policy.page_size} tokens are allowed: lower "
                "num_pages or kv_bytes"
            )
        contiguous = self.cache == "contiguous"
        return CoreOptions(
            policy,
            num_pages,
            contiguous,
            checked=self.checked,
            least_pages=self._least_pages(geometry),
        )

    def _max_batch_tokens(self, geometry: ModelFacts, max_batch: int) -> int:
        largest = geometry.gear_tokens
        given = self.max_batch_tokens
        if given is None:
            # Beside a full batch of decode rows there must be room for prompts.
            default = max(DEFAULT_MAX_BATCH_TOKENS, 2 * max_batch)
            return min(default, largest) if largest else default
        if largest and given > largest:
            raise ValueError(
                f"max_batch_tokens is {given}, but the largest gear of the artefact has {largest} "
                "tokens: lower it, or compile again with a larger gear"
            )
        return given

    def _least_pages(self, geometry: ModelFacts) -> int:
        """Pages that will do if no size was given and none is compiled in, else 0."""
        if geometry.num_pages or self.num_pages is not None or self.kv_bytes is not None:
            return 0
        return least_pages(geometry.cache, geometry.max_seq_len)

    def _num_pages(self, geometry: ModelFacts, max_batch: int) -> int:
        fixed = geometry.num_pages
        if fixed and (self.kv_bytes is not None or self.num_pages not in (None, fixed)):
            asked = f"kv_bytes={self.kv_bytes}" if self.kv_bytes else f"num_pages={self.num_pages}"
            raise ValueError(
                f"{asked} was asked for, but the artefact was compiled for {fixed} pages: leave it "
                "out, or compile again"
            )
        if self.num_pages is not None or fixed:
            return self.num_pages or fixed
        if self.kv_bytes is not None:
            return geometry.cache.pages_in(self.kv_bytes)
        least = least_pages(geometry.cache, geometry.max_seq_len)
        whole = least - 1
        if self.cache == "contiguous":
            return 1 + max_batch * whole
        average = min(self.average_length or DEFAULT_AVERAGE_LENGTH, geometry.max_seq_len)
        # One sequence of full length always fits; more than all of full length is never used.
        return min(
            max(geometry.cache.pages_for_batch(max_batch, average), least),
            max_batch * whole + 1,
        )


def _warn_if_small(num_pages: int, policy: SchedulerPolicy) -> None:
    holds = (num_pages - 1) * policy.page_size
    if holds < policy.max_seq_len:
        _log.warning(
            "the model takes sequences of %d tokens, but the page pool holds %d (%s of %d): "
            "longer prompts are refused and longer answers end with finish_reason 'length'",
            policy.max_seq_len,
            holds,
            counted(num_pages - 1, "page"),
            policy.page_size,
        )
