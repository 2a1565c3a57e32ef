"""`Engine`: many callers, one device.

One thread of its own loads the model and runs every step, so a device never sees a second thread
and a Ctrl-C, which Python delivers to the main thread, never lands inside a step. Callers from any
thread queue requests and wait on them.

The loop runs while somebody waits for an answer (`generate`, `stream`, a request's own methods), or
all the time after `start()`. `step()` runs one step, for callers that want to see each.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from .backend import Backend, DeviceLostError
from .engine_core import EngineCore
from .engine_options import EngineOptions
from .engine_statistics import EngineStatistics
from .page_trace import PageTrace
from .request import Completion, Hub, Request, RequestError, Tokens
from .sampling_params import SamplingParams
from .stop_check import AnswerText

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

Prompt = str | Sequence[int]

_log = logging.getLogger(__name__)


class EngineError(RuntimeError):
    """The engine is closed, or broke; the cause is chained."""


class Engine:
    """Serves a compiled model with continuous batching over a paged KV cache.

    >>> with Engine("stories260k.host") as engine:                          # doctest: +SKIP
    ...     print(engine.generate(["Once upon a time"])[0].text)
    """

    def __init__(
        self,
        artifact: str | Path | Backend,
        options: EngineOptions | None = None,
        tokenizer: Tokenizer | None = None,
        **settings: object,
    ) -> None:
        """Load the artefact folder `artifact` and start the engine's thread.

        settings: fields of `EngineOptions`, in place of `options`. A Backend in place of a folder
        brings its own model. Raises what loading raises.
        """
        if options is not None and settings:
            raise TypeError(
                f"options and {', '.join(settings)} were both given: put all settings in one place"
            )
        self.options = options or EngineOptions.of(**settings)
        backend: Backend
        if isinstance(artifact, (str, Path)):
            from .artifact_backend import open_artifact

            backend, tokenizer = open_artifact(artifact, self.options, tokenizer)
        else:
            backend = artifact
        self.tokenizer = tokenizer
        self._hub = Hub()
        self._hub.driving, self._hub.cancel = self._driving, self.cancel
        self._hub.text_of = self._text_of
        self._work = threading.Condition(self._hub.lock)  # something to do for the loop
        self._drivers = 0  # callers that wait for progress
        self._always = False  # after start()
        self._asked = 0  # steps asked for by step()
        self._answered = 0
        self._answer = False
        self._closing = False
        self._broken: BaseException | None = None
        self._core: EngineCore | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=self._main, args=(backend,), name="pagedom-engine", daemon=True
        )
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C: a library that is loading a model must not lose its thread
            self.close()
            raise
        if self._broken is not None:
            self._thread.join()
            raise self._broken
        atexit.register(self.close)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, *, choice: int = 0
    ) -> Request:
        """Queue a prompt, text or token ids, and return its handle at once.

        choice: index among several answers to one prompt, which makes their seeds differ. Raises
        RequestError (a ValueError) when the request can never be served; it then holds nothing.
        """
        tokens = self._encode(prompt)
        with self._hub.lock:
            request = self._alive().submit(tokens, params or SamplingParams(), choice)
            self._work.notify()
        return request

    def cancel(self, request: Request) -> None:
        """Drop a request; its pages are free when the step in progress has ended."""
        with self._hub.lock:
            if self._core is not None:
                self._core.cancel(request)

    def step(self) -> bool:
        """Run one step; returns whether there was anything to do. Raises EngineError."""
        with self._hub.done:
            self._alive()
            self._asked += 1
            ticket = self._asked
            self._work.notify()
            self._hub.done.wait_for(lambda: self._answered >= ticket or self._stopped)
            self._alive()
            return self._answer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Return a completion for each prompt, in order.

        params: one for all, or one each. If anything goes wrong, or on Ctrl-C, the requests of this
        call are cancelled.
        """
        batch = _as_batch(prompts)
        each = _params_for(params, len(batch))
        requests: list[Request] = []
        try:
            with self._driving():
                for prompt, one in zip(batch, each):
                    requests.append(self.submit(prompt, one))
                return [request.result() for request in requests]
        except BaseException:
            for request in requests:
                self.cancel(request)
            raise

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Yield the answer's text as it comes; leaving the iterator cancels the request."""
        request = self.submit(prompt, params)
        return self.text_deltas(request)

    def text_deltas(self, request: Request) -> Iterator[str]:
        """Yield the text of a request as it comes; leaving the iterator cancels the request."""
        if self.tokenizer is None:
            raise EngineError("this engine has no tokenizer: iterate over the request's token ids")
        answer = AnswerText(self.tokenizer, request)
        try:
            with self._driving():
                while fresh := request.new_tokens():
                    delta = answer.feed(self._visible(request, fresh))
                    if delta:
                        yield delta
            if rest := answer.feed([], last=True):
                yield rest
        finally:
            self.cancel(request)

    def start(self) -> None:
        """Run the loop whether or not anybody waits: for servers."""
        with self._hub.lock:
            self._alive()
            self._always = True
            self._work.notify()

    def stop(self) -> None:
        """Undo `start`; requests stay where they are."""
        with self._hub.lock:
            self._always = False

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each step, on the engine's thread, which it must not keep.

        For event loops: one `loop.call_soon_threadsafe` a step, then `Request.poll_tokens`.
        """
        with self._hub.lock:
            self._alive().listeners.append(listener)

    def statistics(self) -> EngineStatistics:
        """Return a snapshot of counters and pool."""
        return self._alive().statistics()

    def close(self) -> None:
        """Stop the loop, end unfinished requests, free the device; a second call does nothing."""
        with self._hub.lock:
            self._closing = True
            self._work.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)

    @property
    def _stopped(self) -> bool:
        return self._closing or self._broken is not None

    def _alive(self) -> EngineCore:
        if self._broken is not None:
            raise EngineError(f"the engine broke: {self._broken}") from self._broken
        if self._closing or self._core is None:
            raise EngineError("the engine is closed")
        return self._core

    @contextmanager
    def _driving(self) -> Iterator[None]:
        """Keep the loop running while the caller waits."""
        with self._hub.lock:
            self._drivers += 1
            self._work.notify()
        try:
            yield
        finally:
            with self._hub.lock:
                self._drivers -= 1

    def _main(self, backend: Backend) -> None:
        """Own the device: everything that touches it happens on this thread."""
        try:
            self._core = self._open(backend)
        except BaseException as error:
            self._broken = error
            return
        finally:
            self._ready.set()
        core = self._core
        try:
            while self._wait_for_work(core):
                self._turn(core)
        except DeviceLostError as error:
            _log.error("the engine ends: %s", error)
            self._broken = error
        except BaseException as error:  # a bug: no request may be left waiting for ever
            _log.exception("the engine's loop broke")
            self._broken = error
        text = "the engine was closed before the request had finished"
        if self._broken is not None:
            text = f"the engine broke: {self._broken}"
        core.fail_all(EngineError(text))
        with self._hub.lock:
            self._hub.done.notify_all()
        core.close()

    def _open(self, backend: Backend) -> EngineCore:
        options = self.options.resolve(backend.geometry)
        trace = None
        if self.options.page_trace is not None:
            page_size = backend.geometry.cache.page_size
            trace = PageTrace(self.options.page_trace, options.num_pages, page_size)
        return EngineCore(backend, options, self._hub, self.tokenizer, trace)

    def _wait_for_work(self, core: EngineCore) -> bool:
        """Sleep until there is a step to run; returns False when the engine closes."""

        def due() -> bool:
            wanted = self._always or self._drivers > 0
            return self._closing or self._asked > self._answered or (wanted and core.has_work)

        with self._work:
            self._work.wait_for(due)
            return not self._closing

    def _turn(self, core: EngineCore) -> None:
        asked = self._asked
        answer = core.step()
        if asked > self._answered:
            with self._hub.done:
                self._answered, self._answer = self._answered + 1, answer
                self._hub.done.notify_all()

    def _encode(self, prompt: Prompt) -> Tokens:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError("this engine has no tokenizer: submit token ids")
            return np.array(self.tokenizer.encode(prompt), np.int32)
        return _as_ids(prompt)

    def _text_of(self, request: Request) -> str:
        if self.tokenizer is None:
            return ""
        ids = self._visible(request, request.output_tokens.tolist())
        return AnswerText(self.tokenizer, request).feed(ids, last=True)

    def _visible(self, request: Request, fresh: list[int]) -> list[int]:
        """Return `fresh` without the end-of-sequence token that ended the request."""
        eos = self._eos_ids
        if request.params.ignore_eos or not fresh or fresh[-1] not in eos:
            return fresh
        return fresh[:-1]

    @property
    def _eos_ids(self) -> tuple[int, ...]:
        return () if self._core is None else self._core.geometry.eos_ids


def _as_ids(prompt: Sequence[int]) -> Tokens:
    """Check that `prompt` is a flat sequence of integers and return it as int32."""
    ids = np.asarray(prompt)
    if ids.size == 0:
        return np.empty(0, np.int32)
    if ids.ndim == 1 and ids.dtype.kind == "O" and all(type(token) is int for token in prompt):
        ids = np.clip(ids, -1, np.iinfo(np.int32).max).astype(np.int64)  # ids beyond 64 bits
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise RequestError(
            f"a prompt is a text or a flat list of token ids, got {type(prompt).__name__} of shape "
            f"{ids.shape} and dtype {ids.dtype}"
        )
    limits = np.iinfo(np.int32)
    tokens: Tokens = np.clip(ids, limits.min, limits.max).astype(np.int32)
    return tokens


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list of prompts: a single text or list of ids becomes a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    texts, ids = [], []
    for item in prompts:
        if isinstance(item, (int, np.integer)):
            ids.append(int(item))
        else:
            texts.append(item)
    if ids and texts:
        raise RequestError("token ids and prompts are mixed: give a list of prompts")
    return [ids] if ids else list(texts)


def _params_for(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    each = list(params)
    if len(each) != count:
        raise ValueError(
            f"{count} prompts but {len(each)} sampling parameters: give one or {count}"
        )
    return each
