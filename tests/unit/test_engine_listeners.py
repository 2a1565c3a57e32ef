"""Who is rung once a step, and what becomes of a listener that fails."""

from __future__ import annotations

import asyncio

from closed_form import ClosedFormBackend, continuation

from pagedom.runtime.engine import Engine
from pagedom.runtime.sampling_params import SamplingParams


def test_a_listener_that_fails_is_dropped_and_nothing_else(caplog):
    backend, calls = ClosedFormBackend(), []

    def broken() -> None:
        calls.append("broken")
        raise ValueError("not my day")

    with Engine(backend) as engine:
        engine.add_listener(broken)
        engine.add_listener(lambda: calls.append("sound"))
        answer = engine.generate([1, 2], SamplingParams(max_tokens=5))[0]
        assert list(answer.token_ids) == continuation([1, 2], 5)
    assert calls.count("broken") == 1
    assert calls.count("sound") >= 5
    assert caplog.text.count("a listener failed and is not called again") == 1
    assert backend.closed == 1


def test_a_loop_that_ends_before_the_engine(caplog):
    """The device is given back though the last ring finds nobody."""
    backend = ClosedFormBackend()
    engine = Engine(backend)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        engine.add_listener(lambda: loop.call_soon_threadsafe(lambda: None))
        engine.start()

    asyncio.run(serve())
    request = engine.submit([1, 2], SamplingParams(max_tokens=5))
    assert list(request.result(30).token_ids) == continuation([1, 2], 5)
    engine.close()
    assert backend.closed == 1
    assert "Event loop is closed" in caplog.text
