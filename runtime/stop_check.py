"""Stop strings on the engine's side: the only requests whose text a step has to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .detokenizer import Detokenizer
from .request import Request, RequestError
from .sampling_params import SamplingParams
from .stop_strings import StopMatcher


class TextTools(Protocol):
    """The part of `tokenizer.Tokenizer` that turns answers into text."""

    def detokenizer(self, skip_special: bool = True, continuation: bool = False) -> Detokenizer:
        """Return an incremental decoder for one answer."""


class AnswerText:
    """The text of one answer as its tokens come, cut at a stop string."""

    def __init__(self, text: TextTools, request: Request) -> None:
        """Start before the first token of `request`."""
        self._detokenizer = text.detokenizer(continuation=request.continues)
        self._matcher = StopMatcher(request.params.stop) if request.params.stop else None

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._matcher is not None and self._matcher.matched is not None

    def feed(self, ids: list[int], last: bool = False) -> str:
        """Take the next ids and return the text that may be shown; `last`: nothing follows."""
        delta = self._detokenizer.feed(ids, last)
        if self._matcher is None:
            return delta
        shown = self._matcher.feed(delta)
        return shown + self._matcher.finish() if last and not self.stopped else shown


class StopChecks:
    """Watches the running requests that have stop strings."""

    def __init__(self, text: TextTools | None) -> None:
        self._text = text
        self._watched: dict[int, tuple[Request, AnswerText, int]] = {}  # by id; tokens seen

    @property
    def active(self) -> bool:
        """Whether any request has stop strings."""
        return bool(self._watched)

    def check_possible(self, params: SamplingParams) -> None:
        """Raise RequestError for stop strings where no tokenizer can make text."""
        if params.stop and self._text is None:
            raise RequestError(
                "stop strings need a tokenizer, and this artefact has none: leave `stop` out, or "
                "compile the model again from a checkpoint that has one"
            )

    def add(self, request: Request) -> None:
        """Watch a request if it has stop strings."""
        if request.params.stop and self._text is not None:
            answer = AnswerText(self._text, request)
            self._watched[request.id] = (request, answer, request.prompt_tokens)

    def forget(self, request: Request) -> None:
        """Stop watching a request."""
        self._watched.pop(request.id, None)

    def check(self, stop: Callable[[Request], None]) -> list[Request]:
        """Look at the new tokens; calls `stop` for those that met one, and returns them."""
        stopped = []
        for request, answer, seen in list(self._watched.values()):
            known = request.known_tokens()
            answer.feed(known[seen:].tolist())
            if answer.stopped and request.finished:
                request.finish_reason = "stop"  # the last allowed token completed the stop
            elif answer.stopped:
                stop(request)
                stopped.append(request)
            if request.finished:
                self.forget(request)
            else:
                self._watched[request.id] = (request, answer, known.size)
        return stopped
