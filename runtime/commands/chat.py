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
from .options import (
    artefact_argument,
    engine_options,
    open_engine,
    sampling_options,
    sampling_params,
)

if TYPE_CHECKING:
    from ..chat_template import ChatTemplate
    from ..engine import Engine
    from ..request import Request
    from ..sampling_params import SamplingParams
    from ..tokenizer import Tokenizer

MAX_TOKENS = 512
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
@sampling_options
@engine_options
def chat(artefact: Path, **options: Any) -> None:
    """Talk with the instruct model in ARTEFACT.

    Each line is a message; answers are shown as they come. /reset forgets the conversation, /exit
    leaves, Ctrl-C stops the answer but not the program. --max-tokens is 512 by default here.
    """
    from ..chat_template import ChatTemplate

    params = sampling_params(options, max_tokens=MAX_TOKENS)
    template = ChatTemplate.from_folder(artefact)
    conversation = Conversation(template, options["system"])
    with open_engine(artefact, options, max_batch=1) as engine:
        if engine.tokenizer is None:
            raise click.UsageError(f"{artefact} has no tokenizer, so it cannot chat")
        talk = _Talk(engine, engine.tokenizer, conversation, params)
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

    template: ChatTemplate
    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def prompt(self, text: str, tokenizer: Tokenizer) -> list[int]:
        """Add the user's message and return the ids to complete."""
        self.messages.append({"role": "user", "content": text})
        # The template writes the begin token itself where the model wants one.
        return tokenizer.encode(self.template.render(self.messages), add_bos=False)

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
    tokenizer: Tokenizer
    conversation: Conversation
    params: SamplingParams

    def answer(self, line: str) -> None:
        from ..chat_template import ChatTemplateError
        from ..request import RequestError, RequestFailed

        try:
            request = self.engine.submit(
                self.conversation.prompt(line, self.tokenizer), self.params
            )
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
            if request.finish_reason == "length":
                note("(cut off: raise --max-tokens, or /reset if the conversation is long)")
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
