"""A request: what a caller asked for, and the handle to pull its answer from.

While a sequence runs, its tokens live in a row of `sequences.SequenceRows`; a waiting, preempted or
finished request owns its tokens itself. Consumers PULL: a step writes arrays and wakes whoever
waits, once, so that its cost does not grow with the number of listeners.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from .sampler import SamplingParams
from .sequences import SequenceRows

Tokens = npt.NDArray[np.int32]
FinishReason = Literal["stop", "length", "cancelled", "error"]

NO_ROW = -1


class RequestError(ValueError):
    """A request that can never be served, refused before it holds anything."""


class RequestFailed(RuntimeError):  # noqa: N818 - a state of a request, not a kind of bug
    """The step that carried a request failed on the device; the cause is chained."""


@dataclass
class Timings:
    """When things happened, in seconds of `time.perf_counter`; None until they have.

    admitted: when the first step that computes the prompt was planned.
    """

    submitted: float = field(default_factory=time.perf_counter)
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None
    preemptions: int = 0

    @property
    def seconds_to_first_token(self) -> float | None:
        """Seconds from submission to the first token."""
        return None if self.first_token is None else self.first_token - self.submitted

    @property
    def seconds(self) -> float | None:
        """Seconds from submission to the end."""
        return None if self.finished is None else self.finished - self.submitted


@dataclass(frozen=True)
class Completion:
    """A finished answer.

    `finish_reason` is "stop" (end-of-sequence token or stop string), "length" (max_tokens, or the
    end of the model's context or of the page pool), "cancelled" or "error". `token_ids` counts the
    tokens that formed a stop string, `text` does not show it.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    prompt_tokens: int
    timings: Timings


class Hub:
    """What a handle needs of its engine: one lock, two bells, and a way to make it run."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.bell = threading.Condition(self.lock)  # rung once a step
        self.done = threading.Condition(self.lock)  # rung when a request ends
        self.driving: Callable[[], AbstractContextManager[None]] = nullcontext
        self.cancel: Callable[[Request], None] = lambda _request: None
        self.text_of: Callable[[Request], str] = lambda _request: ""


class Request:
    """One sequence from submission to its end; made by `Engine.submit`.

    All methods may be called from any thread; one consumer at a time.
    """

    def __init__(self, request_id: int, prompt: Tokens, params: SamplingParams, hub: Hub) -> None:
        """Make a waiting request; `request_id` is its place in the order of arrival."""
        self.id = request_id
        self.prompt = prompt  # int32 [prompt_len]
        self.params = params
        self.seed = 0 if params.seed is None else params.seed
        self.limit = 0  # tokens, prompt included, at which the request ends with "length"
        self.timings = Timings()
        self.continues = True  # whether the answer's text goes on from the prompt's
        self.row = NO_ROW
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self._hub = hub
        self._rows: SequenceRows | None = None
        self._tokens = prompt  # int32: all known tokens while not in a row
        self._delivered = prompt.size

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens."""
        return int(self.prompt.size)

    @property
    def finished(self) -> bool:
        """Whether no more tokens will come."""
        return self.finish_reason is not None

    @property
    def tokens(self) -> Tokens:
        """A copy of all known tokens, prompt first: int32."""
        with self._hub.lock:
            tokens: Tokens = self.known_tokens().copy()
        return tokens

    @property
    def output_tokens(self) -> Tokens:
        """A copy of the tokens generated so far: int32."""
        tokens: Tokens = self.tokens[self.prompt.size :]
        return tokens

    def new_tokens(self, timeout: float | None = None) -> list[int]:
        """Return the tokens that came since the last call, waiting for at least one.

        Returns an empty list at the end, or when `timeout` seconds passed without a token; raises
        RequestFailed when the device failed.
        """
        with self._hub.driving(), self._hub.bell:
            self._hub.bell.wait_for(self._has_news, timeout)
            fresh = self._take_news()
        if not fresh:
            self.raise_if_failed()
        return fresh

    def poll_tokens(self) -> list[int]:
        """Return the tokens that came since the last call, at once; for callers with a bell."""
        with self._hub.lock:
            return self._take_news()

    def __iter__(self) -> Iterator[int]:
        """Yield token ids as they come."""
        with self._hub.driving():
            while fresh := self.new_tokens():
                yield from fresh

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; returns whether it came within `timeout` seconds."""
        with self._hub.driving(), self._hub.done:
            return self._hub.done.wait_for(lambda: self.finished, timeout)

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the end and return the completion.

        Raises RequestFailed when the device failed, TimeoutError after `timeout` seconds.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"request {self.id} did not finish within {timeout} s")
        self.raise_if_failed()
        return self.completion()

    def completion(self) -> Completion:
        """Return the completion of a finished request."""
        if self.finish_reason is None:
            raise RuntimeError(f"request {self.id} has not finished; call result() to wait for it")
        return Completion(
            text=self._hub.text_of(self),
            token_ids=self.output_tokens.tolist(),
            finish_reason=self.finish_reason,
            prompt_tokens=self.prompt_tokens,
            timings=self.timings,
        )

    def cancel(self) -> None:
        """Ask the engine to drop the request; its pages are free after the step in progress."""
        self._hub.cancel(self)

    def raise_if_failed(self) -> None:
        """Raise RequestFailed, with its cause, when the device failed under this request."""
        if self.error is not None:
            raise RequestFailed(f"request {self.id} failed: {self.error}") from self.error

    # The engine's side; the caller holds the hub's lock.

    def known_tokens(self) -> Tokens:
        """Return a view of all known tokens, prompt first."""
        if self._rows is None:
            return self._tokens
        known: Tokens = self._rows.tokens[self.row, : self._rows.num_tokens[self.row]]
        return known

    def enter(self, rows: SequenceRows, row: int) -> None:
        """Record that the tokens now live in `row`."""
        self._rows, self.row = rows, row

    def note_admitted(self) -> None:
        """Record the time at which a step first took the request in, once."""
        if self.timings.admitted is None:
            self.timings.admitted = time.perf_counter()

    def note_first_token(self) -> None:
        """Record the time of the first token, once."""
        if self.timings.first_token is None:
            self.timings.first_token = time.perf_counter()

    def leave(self) -> None:
        """Take the tokens out of the row: at preemption or at the end."""
        self._tokens = self.known_tokens().copy()
        self._rows, self.row = None, NO_ROW

    def finish(self, reason: FinishReason, error: Exception | None = None) -> None:
        """Record the end of a request that is in no row."""
        self.finish_reason, self.error = reason, error
        self.timings.finished = time.perf_counter()

    def _has_news(self) -> bool:
        return self.finished or self.known_tokens().size > self._delivered

    def _take_news(self) -> list[int]:
        fresh: list[int] = self.known_tokens()[self._delivered :].tolist()
        self._delivered += len(fresh)
        return fresh
