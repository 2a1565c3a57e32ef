"""The pages of the KV cache: who holds which, and which are free.

Page 0 is the null page: padding points at it, nobody ever owns it, so the pool hands out 1..P-1.
The pool knows ids only; the bytes behind them belong to `kv_cache.KvCache`.

The free list is a stack in one array. Taking n pages and giving n back are array copies whatever n
is, and `peek` can say without changing anything which pages the next `take` will return: that is
what makes a pure `Scheduler.plan` possible.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PageIds = npt.NDArray[np.int32]

NULL_PAGE = 0
NOBODY = -1


class PageError(RuntimeError):
    """A page was used against the rules: given twice, out of range, or never taken."""


@dataclass(frozen=True)
class PoolStatistics:
    """One look at a pool; all numbers are pages, the null page excluded."""

    usable: int
    free: int
    held: int
    shared: int  # held by more than one sequence
    longest_free_run: int  # most neighbouring free pages
    high_water: int  # most pages ever held at once


def pages_for(num_tokens: int, page_size: int) -> int:
    """Return how many pages hold `num_tokens` tokens: a ceiling for each sequence on its own."""
    return -(-num_tokens // page_size)


class PagePool:
    """Reference-counted pages 1..num_pages-1 behind a stack of free ids."""

    def __init__(self, num_pages: int, name_of: Callable[[int], str] | None = None) -> None:
        """Make a pool of `num_pages` pages including the null page; `name_of` names an owner."""
        if num_pages < 2:
            raise ValueError(
                f"a pool of {num_pages} pages holds nothing: page 0 is the null page, so at least "
                "2 pages are needed; raise num_pages or the KV byte budget"
            )
        self.num_pages = num_pages
        self._name_of = name_of or (lambda owner: f"request {owner}")
        self._refs = np.zeros(num_pages, np.int32)  # [P] holders of each page
        self._owners = np.full(num_pages, NOBODY, np.int64)  # [P] first taker, kept after the end
        # [P-1] a stack whose top is at the end; descending, so that pages leave in ascending order
        self._stack = np.arange(num_pages - 1, 0, -1, dtype=np.int32)
        self._top = num_pages - 1
        self._high_water = 0

    @property
    def num_usable(self) -> int:
        """Pages that can be handed out at all."""
        return self.num_pages - 1

    @property
    def num_free(self) -> int:
        """Pages that can be handed out now."""
        return self._top

    @property
    def num_held(self) -> int:
        """Distinct pages that somebody holds."""
        return self.num_usable - self._top

    @property
    def owners(self) -> npt.NDArray[np.int64]:
        """Return a copy of the owner of each page, NOBODY where free: int64 [P]."""
        return np.where(self._refs > 0, self._owners, NOBODY)

    def shared_mask(self) -> npt.NDArray[np.bool_]:
        """Return which pages more than one sequence holds: bool [P]."""
        return self._refs > 1

    def refs(self, page: int) -> int:
        """Return how many sequences hold `page`."""
        return int(self._refs[page])

    def free_ids(self) -> PageIds:
        """Return a copy of the free ids in the order in which `take` would hand them out."""
        ids: PageIds = self._stack[: self._top][::-1].copy()
        return ids

    def peek(self, count: int, giving: PageIds | None = None) -> PageIds | None:
        """Return what `give(giving)` and then `take(count)` would yield; changes nothing."""
        if giving is None or not giving.size:
            if count > self._top:
                return None
            return self._stack[self._top - count : self._top][::-1]
        stack: PageIds = np.concatenate([self._stack[: self._top], self.would_free(giving)])
        return stack[stack.size - count :][::-1] if count <= stack.size else None

    def take(self, count: int, owner: int | npt.NDArray[np.int64] = NOBODY) -> PageIds | None:
        """Return `count` page ids for `owner` (one, or one each), or None if they do not fit."""
        if count > self._top:
            return None
        ids: PageIds = self._stack[self._top - count : self._top][::-1].copy()
        self._top -= count
        self._hold(ids, owner)
        return ids

    def peek_run(self, count: int, excluding: PageIds | None = None) -> PageIds | None:
        """Return `count` neighbouring free pages outside `excluding`, or None; changes nothing."""
        ids: PageIds = np.sort(self._stack[: self._top])
        if excluding is not None and excluding.size:
            ids = np.setdiff1d(ids, excluding, assume_unique=True)
        if count < 1 or count > ids.size:
            return None
        fits = np.flatnonzero(ids[count - 1 :] - ids[: ids.size - count + 1] == count - 1)
        if not fits.size:
            return None
        run: PageIds = ids[fits[0] : fits[0] + count]
        return run

    def take_exactly(self, ids: PageIds, owner: int | npt.NDArray[np.int64] = NOBODY) -> None:
        """Take the free pages `ids`; raises PageError, with nothing changed, when one is held."""
        pages, counts = self._counted(ids)
        held = pages[(self._refs[pages] > 0) | (counts > 1)]
        if held.size:
            page = int(held[0])
            raise PageError(f"page {page} is not free and cannot be taken{self._last_owner(page)}")
        stack = self._stack[: self._top]
        rest = stack[~np.isin(stack, pages)]
        self._top = rest.size
        self._stack[: self._top] = rest
        self._hold(ids, owner)

    def take_run(self, count: int, owner: int = NOBODY) -> PageIds | None:
        """Return `count` neighbouring pages, or None: what a contiguous cache has to ask for."""
        ids = self.peek_run(count)
        if ids is not None:
            self.take_exactly(ids, owner)
        return ids

    def share(self, ids: PageIds) -> None:
        """Add one holder to each of `ids`; raises PageError when one is free."""
        pages, counts = self._counted(ids)
        if pages.size and int(self._refs[pages].min()) < 1:
            page = int(pages[np.argmin(self._refs[pages])])
            raise PageError(f"page {page} is free and cannot be shared{self._last_owner(page)}")
        self._refs[pages] += counts

    def fork(self, ids: PageIds) -> PageIds:
        """Return a second sequence's list of the same pages, each with one more holder."""
        self.share(ids)
        return np.array(ids, np.int32)

    def would_free(self, ids: PageIds) -> PageIds:
        """Return which of `ids` nobody would hold after `give(ids)`, in stack order."""
        pages, counts = self._counted(ids)
        freed: PageIds = pages[self._refs[pages] == counts][::-1]
        return freed

    def give(self, ids: PageIds) -> int:
        """Take one holder from each of `ids`; returns how many became free.

        Raises PageError, with nothing changed, when a page is given more often than it is held.
        """
        pages, counts = self._counted(ids)
        if not pages.size:
            return 0
        missing = self._refs[pages] < counts
        if missing.any():
            at = int(np.argmax(missing))
            page = int(pages[at])
            raise PageError(
                f"page {page} given back {int(counts[at])} times but held by "
                f"{int(self._refs[page])}{self._last_owner(page)}: each holder frees a page once"
            )
        self._refs[pages] -= counts
        # Descending, so that the next sequence receives neighbouring pages in ascending order.
        freed = pages[self._refs[pages] == 0][::-1]
        self._stack[self._top : self._top + freed.size] = freed
        self._top += freed.size
        return int(freed.size)

    def defragment(self) -> None:
        """Sort the free list, so that new sequences get neighbouring pages."""
        self._stack[: self._top] = np.sort(self._stack[: self._top])[::-1]

    def permute_free(self, rng: np.random.Generator) -> None:
        """Shuffle the free list: for tests, no answer may depend on which page is handed out."""
        rng.shuffle(self._stack[: self._top])

    def statistics(self) -> PoolStatistics:
        """Return a snapshot; costs a pass over the pool."""
        return PoolStatistics(
            usable=self.num_usable,
            free=self._top,
            held=self.num_held,
            shared=int(np.count_nonzero(self._refs > 1)),
            longest_free_run=self._longest_run(),
            high_water=self._high_water,
        )

    def leaks(self) -> list[str]:
        """Return one line for each owner that still holds pages, naming it and the pages."""
        held = np.flatnonzero(self._refs > 0)
        lines = []
        for owner in np.unique(self._owners[held]):
            pages = held[self._owners[held] == owner]
            shown = ", ".join(map(str, pages[:8])) + (", …" if pages.size > 8 else "")
            name = "nobody named" if owner == NOBODY else self._name_of(int(owner))
            lines.append(f"{name} holds {pages.size} page(s): {shown}")
        return lines

    def _hold(self, ids: PageIds, owner: int | npt.NDArray[np.int64]) -> None:
        self._refs[ids] = 1
        self._owners[ids] = owner
        self._high_water = max(self._high_water, self.num_held)

    def _counted(self, ids: PageIds) -> tuple[PageIds, npt.NDArray[np.int32]]:
        """Return the distinct ids, ascending, and how often each is listed; checks the range."""
        pages, counts = np.unique(np.asarray(ids, np.int32), return_counts=True)
        if pages.size and (pages[0] < 1 or pages[-1] >= self.num_pages):
            bad = int(pages[0]) if pages[0] < 1 else int(pages[-1])
            raise PageError(
                f"page {bad} does not belong to this pool: pages are 1..{self.num_pages - 1} "
                "(0 is the null page, which nobody owns)"
            )
        return pages, counts.astype(np.int32)

    def _longest_run(self) -> int:
        if not self._top:
            return 0
        ids = np.sort(self._stack[: self._top])
        breaks = np.flatnonzero(np.diff(ids) != 1)
        edges = np.concatenate([[-1], breaks, [ids.size - 1]])
        return int(np.diff(edges).max())

    def _last_owner(self, page: int) -> str:
        owner = int(self._owners[page])
        return " (never taken)" if owner == NOBODY else f" (owner: {self._name_of(owner)})"
