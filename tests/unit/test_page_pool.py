"""Pages: counts, owners, errors that name page and owner, and a random walk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedom.runtime.page_pool import NOBODY, PageError, PagePool, pages_for


def ids(*pages: int) -> np.ndarray:
    return np.array(pages, np.int32)


def test_the_null_page_is_never_handed_out():
    pool = PagePool(9)
    taken = pool.take(8, owner=1)
    assert taken is not None
    assert sorted(taken.tolist()) == list(range(1, 9))
    assert pool.take(1) is None


def test_fresh_pages_are_neighbours_in_order():
    pool = PagePool(9)
    assert pool.take(3).tolist() == [1, 2, 3]
    assert pool.take(2).tolist() == [4, 5]


def test_a_pool_of_one_page_is_refused():
    with pytest.raises(ValueError, match="page 0 is the null page"):
        PagePool(1)


def test_take_that_does_not_fit_changes_nothing():
    """Case 15 (3): a failed append neither takes nor orphans."""
    pool = PagePool(9)
    held, other = pool.take(3, owner=1), pool.take(4, owner=2)
    before = pool.free_ids().tolist()
    assert pool.take(2, owner=1) is None
    assert pool.free_ids().tolist() == before
    assert pool.num_free == 1
    assert pool.give(held) == 3
    assert pool.give(other) == 4


def test_double_free_names_page_and_owner_and_changes_nothing():
    """Case 15 (2)."""
    pool = PagePool(9, name_of=lambda owner: f"request {owner}")
    (page,) = pool.take(1, owner=7).tolist()
    with pytest.raises(
        PageError, match=rf"page {page} given back 2 times but held by 1.*request 7"
    ):
        pool.give(ids(page, page))
    assert pool.num_free == 7
    pool.give(ids(page))
    with pytest.raises(PageError, match=rf"page {page} .*held by 0 .*request 7"):
        pool.give(ids(page))
    assert pool.num_free == 8


@pytest.mark.parametrize("page", [0, -1, 9])
def test_a_page_outside_the_pool_is_named(page: int):
    pool = PagePool(9)
    with pytest.raises(PageError, match=f"page {page} does not belong"):
        pool.give(ids(page))


def test_shared_pages_become_free_with_the_last_holder():
    pool = PagePool(9)
    first = pool.take(2, owner=1)
    second = pool.fork(first)
    assert pool.statistics().shared == 2
    assert pool.give(first) == 0
    assert pool.give(second) == 2
    with pytest.raises(PageError, match="free and cannot be shared"):
        pool.share(second)


def test_peek_says_what_give_and_take_do():
    pool = PagePool(12)
    a, b = pool.take(4, owner=1), pool.take(3, owner=2)
    pool.share(b[:1])
    peeked = pool.peek(6, giving=np.concatenate([a, b])).tolist()
    assert pool.num_free == 4
    pool.give(a)
    pool.give(b)
    # One give of both and two gives free the same pages, in another order.
    assert set(peeked) <= set(pool.free_ids().tolist())
    pool = PagePool(12)
    a = pool.take(4, owner=1)
    peeked = pool.peek(6, giving=a).tolist()
    pool.give(a)
    assert pool.take(6).tolist() == peeked
    assert pool.peek(99) is None
    assert pool.peek(99, giving=a) is None


def test_defragment_gives_neighbours_again():
    pool = PagePool(33)
    pool.permute_free(np.random.default_rng(0))
    assert pool.peek(4).tolist() != [1, 2, 3, 4]
    pool.defragment()
    assert pool.take(4).tolist() == [1, 2, 3, 4]


def test_runs_are_neighbours_and_exact():
    pool = PagePool(11)
    pool.take_exactly(ids(3, 8), owner=5)
    assert pool.peek_run(3).tolist() == [4, 5, 6]
    assert pool.peek_run(2, excluding=ids(1, 2)).tolist() == [4, 5]
    assert pool.peek_run(5) is None
    assert pool.take_run(4).tolist() == [4, 5, 6, 7]
    assert pool.statistics().longest_free_run == 2
    with pytest.raises(PageError, match=r"page 3 is not free.*request 5"):
        pool.take_exactly(ids(1, 3))
    assert pool.num_free == 4


def test_statistics_and_leaks_name_the_owner():
    pool = PagePool(17)
    taken = pool.take(10, owner=3)
    pool.take(1)
    pool.give(taken[:8])
    statistics = pool.statistics()
    assert (statistics.usable, statistics.free, statistics.held) == (16, 13, 3)
    assert statistics.high_water == 11
    assert pool.leaks() == ["nobody named holds 1 page(s): 11", "request 3 holds 2 page(s): 9, 10"]
    assert pool.owners[9] == 3
    assert pool.owners[1] == NOBODY


@pytest.mark.parametrize(("tokens", "size", "pages"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2)])
def test_pages_for(tokens: int, size: int, pages: int):
    assert pages_for(tokens, size) == pages


def test_sum_of_ceilings_of_the_worked_example(worked_example):
    for size, pages in worked_example.pages.items():
        assert sum(pages_for(n, size) for n in worked_example.prompts) == pages


class Walk:
    """A pool next to a plain list of holders."""

    def __init__(self, pages: int) -> None:
        self.pool, self.holders = PagePool(pages + 1), []

    def act(self, action: int, choice: int) -> None:
        if action == 0 or not self.holders:
            taken = self.pool.take(choice % 4, owner=choice)
            if taken is not None:
                self.holders.append(taken)
        elif action == 1:
            at = choice % len(self.holders)
            more = self.pool.take(1, owner=choice)
            if more is not None:
                self.holders[at] = np.concatenate([self.holders[at], more])
        elif action == 2:
            self.holders.append(self.pool.fork(self.holders[choice % len(self.holders)]))
        else:
            self.pool.give(self.holders.pop(choice % len(self.holders)))

    def check(self) -> None:
        held = [page for pages in self.holders for page in pages.tolist()]
        assert self.pool.num_free + len(set(held)) == self.pool.num_usable
        free = self.pool.free_ids().tolist()
        assert len(free) == len(set(free))
        assert not set(free) & set(held)
        for page in range(1, self.pool.num_pages):
            assert self.pool.refs(page) == held.count(page)


def test_ten_thousand_random_operations():
    """Case 15 (5)."""
    rng = np.random.default_rng(0)
    walk = Walk(8)
    for action, choice in rng.integers(0, [4, 1000], size=(10_000, 2)).tolist():
        walk.act(action, choice)
        walk.check()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=60), st.integers(1, 20))
def test_no_page_has_two_lives(actions, pages):
    walk = Walk(pages)
    for action, choice in actions:
        walk.act(action, choice)
        walk.check()
    for holder in walk.holders:
        walk.pool.give(holder)
    assert walk.pool.num_free == pages
    assert walk.pool.leaks() == []
