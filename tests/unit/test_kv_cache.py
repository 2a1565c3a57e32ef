"""Sizes of a cache, and its memory on a device."""

from __future__ import annotations

import pytest
from fake_memory import Memory

from pagedom.runtime.kv_cache import KvCache, KvCacheError, KvCacheSpec

SPEC = KvCacheSpec(num_layers=30, num_kv_heads=3, head_dim=64, dtype="bfloat16", page_size=32)


def test_sizes_and_strides():
    assert SPEC.bytes_per_token_per_layer == 384
    assert SPEC.bytes_per_token == 23_040
    assert SPEC.bytes_per_page == 737_280
    assert SPEC.buffer_bytes(10) == 122_880
    assert SPEC.total_bytes(10) == 60 * SPEC.buffer_bytes(10)
    assert SPEC.shape(10) == (10, 32, 3, 64)


def test_a_page_that_is_not_aligned_is_refused_with_the_next_size():
    with pytest.raises(KvCacheError, match=r"96 bytes a layer.*multiple of 16"):
        KvCacheSpec(1, 1, 8, "int8", 12)
    KvCacheSpec(1, 1, 8, "int8", 16)


@pytest.mark.parametrize("field", ["num_layers", "num_kv_heads", "head_dim", "page_size"])
def test_zero_is_refused_by_name(field):
    values = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 64, "page_size": 16, field: 0}
    with pytest.raises(KvCacheError, match=f"{field} is 0"):
        KvCacheSpec(dtype="float16", **values)


def test_pages_from_a_budget():
    assert SPEC.pages_in(737_280 * 5 + 1) == 5
    with pytest.raises(KvCacheError, match="hold 1 page"):
        SPEC.pages_in(737_280)


def test_pages_from_batch_and_length():
    """16 sequences of 100 tokens: 4 pages each, half as many again, and the null page."""
    assert SPEC.pages_for_batch(16, 100) == 97
    assert SPEC.pages_for_batch(16, 100, safety=1.0) == 65


def test_one_zeroed_buffer_a_layer_for_keys_and_values():
    memory = Memory()
    cache = KvCache(memory, KvCacheSpec(2, 1, 64, "float16", 16), num_pages=3)
    assert list(dict(cache)) == ["key_cache.0", "key_cache.1", "value_cache.0", "value_cache.1"]
    assert set(dict(cache).values()) == set(memory.live) == memory.zeroed
    assert cache.nbytes == sum(memory.live.values())
    cache.close()
    cache.close()
    assert memory.live == {}


def test_a_failed_allocation_frees_what_came_before():
    spec = KvCacheSpec(2, 1, 64, "float16", 16)
    memory = Memory(room=3 * spec.buffer_bytes(3))
    with pytest.raises(MemoryError):
        KvCache(memory, spec, num_pages=3)
    assert memory.live == {}
