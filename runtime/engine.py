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

from .backend import Backend, DeviceLostError
from .engine_core import EngineCore
from .engine_options import EngineOptions
from .engine_statistics import EngineStatistics
from .page_trace import PageTrace
from .prompts import Prompt, encode_chat, encode_prompt, params_for_each, prompt_list
from .request import Completion, Hub, Request, Tokens
from .sampling_params import CHAT_MAX_TOKENS, SamplingParams
from .stop_check import AnswerText

if TYPE_CHECKING:
    from .chat_template import ChatTemplate, Message
    from .tokenizer import Tokenizer

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
        self._folder = Path(artifact) if isinstance(artifact, (str, Path)) else None
        self._template: ChatTemplate | None = None
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
        self._start()

    def _start(self) -> None:
        """Start the thread and wait until the model is loaded; raises what loading raises."""
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
        tokens = encode_prompt(prompt, self.tokenizer)
        return self._queue(tokens, params or SamplingParams(), choice, continues=True)

    def submit_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, *, choice: int = 0
    ) -> Request:
        """Queue a conversation, in the model's chat template, and return its handle at once.

        messages: mappings with `role` (system, user, assistant) and `content`; the answer is the
        assistant's next. params: None allows 512 tokens. Raises ChatTemplateError, RequestError.
        """
        tokens = encode_chat(self.chat_template, messages, self.tokenizer)
        params = params or SamplingParams(max_tokens=CHAT_MAX_TOKENS)
        return self._queue(tokens, params, choice, continues=False)

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
        batch = prompt_list(prompts)
        each = params_for_each(params, len(batch))
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

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """Return the assistant's next message; as `submit_chat`, cancelled on Ctrl-C."""
        request = self.submit_chat(messages, params)
        try:
            return request.result()
        except BaseException:
            self.cancel(request)
            raise

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> Iterator[str]:
        """Yield the assistant's next message as it comes; leaving the iterator cancels it."""
        request = self.submit_chat(messages, params)
        return self.text_deltas(request)

    @property
    def chat_template(self) -> ChatTemplate:
        """The artefact's chat template; raises ChatTemplateError when it has none."""
        from .chat_template import ChatTemplate, ChatTemplateError  # late: jinja2

        if self._template is None:
            if self._folder is None:
                raise ChatTemplateError(
                    "this engine was given a backend, so it knows of no chat template: set "
                    "engine.chat_template to a ChatTemplate"
                )
            self._template = ChatTemplate.from_folder(self._folder)
        return self._template

    @chat_template.setter
    def chat_template(self, template: ChatTemplate) -> None:
        self._template = template

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

        For event loops: one `loop.call_soon_threadsafe` a step, then `Request.poll_tokens`. A
        listener that raises is logged and not called again.
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
            trace = PageTrace(self.options.page_trace)
        return EngineCore(backend, options, self._hub, self.tokenizer, trace)

    def _wait_for_work(self, core: EngineCore) -> bool:
        """Sleep until there is a step to run; returns False when the engine closes."""

        def due() -> bool:
            wanted = self._always or self._drivers > 0
            return self._closing or self._asked > self._answered or (wanted and core.has_work)

        with self._work:
            self._work.wait_for(due)
            return not self._closing

    def _queue(
        self, tokens: Tokens, params: SamplingParams, choice: int, *, continues: bool
    ) -> Request:
        with self._hub.lock:
            request = self._alive().submit(tokens, params, choice, continues=continues)
            self._work.notify()
        return request

    def _turn(self, core: EngineCore) -> None:
        asked = self._asked
        answer = core.step()
        if asked > self._answered:
            with self._hub.done:
                self._answered, self._answer = self._answered + 1, answer
                self._hub.done.notify_all()

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
