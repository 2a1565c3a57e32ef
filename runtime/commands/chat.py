"""`run-om chat`: a conversation in the terminal, or line by line from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import note, write
from .cut_off import cut_off
from .options import (
    artefact_argument,
    engine_options,
    open_engine,
    plan_option,
    sampling_options,
    sampling_params,
)

if TYPE_CHECKING:
    from ..engine import Engine
    from ..request import Request
    from ..sampling_params import SamplingParams

_COMMANDS = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"

_EPILOG = """\b
Examples:
  run-om chat ARTEFACT
  run-om chat ARTEFACT --system "Answer in one sentence." --temperature 0.7
  printf 'Hello\\nAnd in French?\\n' | run-om chat ARTEFACT
"""


@click.command(short_help="Talk with an instruct model in the terminal.", epilog=_EPILOG)
@artefact_argument
@click.option("--system", help="What the model is told before the conversation.")
@plan_option
@sampling_options
@engine_options
def chat(artefact: Path, **options: Any) -> None:
    """Talk with the instruct model in ARTEFACT.

    Each line is a message; answers are shown as they come. /reset forgets the conversation, /exit
    leaves, Ctrl-C stops the answer but not the program.
    """
    from ..chat_template import ChatTemplate
    from ..sampling_params import CHAT_MAX_TOKENS
    from .plan import end_plan, show_engine_plan

    if options["plan"]:
        end_plan(show_engine_plan(artefact, options, max_batch=1))
    params = sampling_params(options, max_tokens=CHAT_MAX_TOKENS)
    ChatTemplate.from_folder(artefact)  # a base model is refused before it is loaded
    conversation = Conversation(options["system"])
    with open_engine(artefact, options, max_batch=1) as engine:
        if engine.tokenizer is None:
            raise click.UsageError(f"{artefact} has no tokenizer, so it cannot chat")
        talk = _Talk(engine, conversation, params)
        if _interactive():
            note(_COMMANDS)
        for line in _lines():
            if line in ("/exit", "/quit"):
                break
            if line == "/reset":
                conversation.reset()
                note("The conversation is forgotten.")
            elif line.startswith("/") and line[1:].isalpha():
                note(f"{line} is no command: {_COMMANDS}.")
            else:
                talk.answer(line)


@dataclass
class Conversation:
    """The messages so far; one that cannot be answered leaves no trace."""

    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def ask(self, text: str) -> list[dict[str, str]]:
        """Add the user's message and return the conversation to continue."""
        self.messages.append({"role": "user", "content": text})
        return self.messages

    def answered(self, text: str) -> None:
        """Add the model's message."""
        self.messages.append({"role": "assistant", "content": text})

    def take_back(self) -> None:
        """Forget the user's last message."""
        self.messages.pop()


@dataclass(frozen=True)
class _Talk:
    """Answers messages; one that is refused or fails is reported, and the conversation goes on."""

    engine: Engine
    conversation: Conversation
    params: SamplingParams

    def answer(self, line: str) -> None:
        from ..chat_template import ChatTemplateError
        from ..request import RequestError, RequestFailed

        try:
            request = self.engine.submit_chat(self.conversation.ask(line), self.params)
            self.conversation.answered(self._stream(request))
        except (ChatTemplateError, RequestError, RequestFailed) as error:
            self.conversation.take_back()
            hint = " Use /reset to begin again." if self.conversation.messages else ""
            click.echo(f"{click.style('Error: ', fg='red')}{error}{hint}", err=True)

    def _stream(self, request: Request) -> str:
        """Show the answer as it comes; Ctrl-C keeps what was said so far."""
        said: list[str] = []
        try:
            for delta in self.engine.text_deltas(request):
                said.append(delta)
                write(delta)
        except KeyboardInterrupt:
            write("\n")
            note("(stopped)")
        else:
            write("\n")
            if reason := cut_off(request, "; /reset begins again"):
                note(f"({reason})")
        return "".join(said)


def _interactive() -> bool:
    return sys.stdin.isatty()


def _lines() -> Iterator[str]:
    """Yield the user's non-empty lines until the end of the input."""
    if not _interactive():
        yield from (line for raw in sys.stdin if (line := raw.strip()))
        return
    with suppress(ImportError):  # line editing and history; Windows has its own
        import readline  # noqa: F401
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            write("\n")
            return
        except KeyboardInterrupt:
            write("\n")
            note("/exit or Ctrl-D leaves")
            continue
        if line:
            yield line
