"""The free memory of a device decides about the cache before it is allocated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from formula_forms import write_artifact

from pagedom.runtime.acl.error_table import INVALID_PARAM
from pagedom.runtime.acl.host_memory import Memory
from pagedom.runtime.acl.options import AclOptions
from pagedom.runtime.artifact import read_manifest
from pagedom.runtime.artifact_memory import memory_facts
from pagedom.runtime.cache_room import HUGE_PAGE_BYTES, CacheRoom, CacheRoomError
from pagedom.runtime.engine import Engine
from pagedom.runtime.engine_options import EngineOptions
from pagedom.runtime.kv_cache import KvCacheSpec
from pagedom.runtime.memory_ledger import ledger

MIB = 1 << 20
SPEC = KvCacheSpec(2, 1, 64, "float32", 32)  # four buffers of 8 KiB a page
ROOM = CacheRoom(SPEC, 100 * MIB, 200 * MIB)


def test_as_many_pages_as_fit() -> None:
    assert ROOM.most_pages() == 100 * MIB // SPEC.bytes_per_page
    assert replace(ROOM, free_bytes=4 * SPEC.page_stride * 7 - 1).most_pages() == 6
    huge = replace(ROOM, granule=HUGE_PAGE_BYTES, free_bytes=4 * HUGE_PAGE_BYTES - 1)
    assert huge.most_pages() == 0  # each buffer takes a whole huge page
    assert replace(huge, free_bytes=4 * HUGE_PAGE_BYTES).most_pages() == HUGE_PAGE_BYTES // 8192


def test_what_was_given_is_kept_or_refused() -> None:
    most = ROOM.most_pages()
    assert ROOM.pages(most, most) == most
    assert replace(ROOM, later_bytes=MIB).pages(most, most) == most
    for room, words in (
        (
            ROOM,
            r"100\.00 MiB of 200\.00 MiB are free on the device, room for 3,200 pages.*num_pages",
        ),
        (replace(ROOM, compiled=True), r"compile again with fewer \(--num-pages\)"),
    ):
        with pytest.raises(CacheRoomError, match=words):
            room.pages(most + 1, most + 1)


def test_what_nobody_gave_shrinks(caplog: pytest.LogCaptureFixture) -> None:
    most = ROOM.most_pages()
    assert ROOM.pages(most, 9) == most
    assert caplog.text == ""
    assert ROOM.pages(2 * most, 9) == most
    assert f"gets {most:,} pages instead of {2 * most}" in caplog.text
    assert replace(ROOM, later_bytes=MIB).pages(2 * most, 9) == most - MIB // SPEC.bytes_per_page
    with pytest.raises(CacheRoomError, match="for one sequence of full length, needs"):
        replace(ROOM, free_bytes=MIB).pages(2 * most, most)


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_artifact(tmp_path_factory.mktemp("room") / "plain", "plain", 32, 24)


def opened(artefact: Path, free: int, **settings: Any) -> Engine:
    """Open an engine on a device on which `free` bytes are left for its cache."""
    plan = ledger(memory_facts(read_manifest(artefact), EngineOptions(executor="oracle")))
    others = plan.row("step inputs").bytes + plan.row("step outputs").bytes
    acl = AclOptions(executor="oracle", memory_bytes=others + free, checked=True)
    return Engine(artefact, acl=acl, **settings)


def test_an_engine_takes_what_there_is(artefact: Path, caplog: pytest.LogCaptureFixture) -> None:
    facts = memory_facts(read_manifest(artefact), EngineOptions(executor="oracle"))
    page = facts.token_bytes * facts.page_size
    least = 1 + -(-facts.max_seq_len // facts.page_size)
    assert facts.pages > least + 3
    with opened(artefact, (least + 3) * page) as engine:
        pages = engine.statistics().pool.usable + 1
        assert least <= pages <= least + 3
        assert f"instead of {facts.pages + 1}" in caplog.text
        (answer,) = engine.generate([[1, 2, 3]])
        assert answer.token_ids
    with pytest.raises(CacheRoomError, match="for one sequence of full length"):
        opened(artefact, 2 * page)
    with pytest.raises(CacheRoomError, match="lower the number of pages"):
        opened(artefact, 20 * page, num_pages=100)
    with opened(artefact, 20 * page, num_pages=10) as engine:
        assert engine.statistics().pool.usable == 9


def test_a_device_that_does_not_say_is_not_asked_twice(
    artefact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Memory, "get_mem_info", lambda self, attr: (0, 0, INVALID_PARAM))
    with opened(artefact, 1 << 30) as engine:
        facts = memory_facts(read_manifest(artefact), EngineOptions(executor="oracle"))
        assert engine.statistics().pool.usable == facts.pages
