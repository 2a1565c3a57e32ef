"""Where prompts come from, and how a text becomes what the model is given."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..chat_template import ChatTemplate
    from ..engine import Engine
    from ..request import Request
    from ..sampling_params import SamplingParams

Prompt = str | list[int]

_NO_PROMPT = """no prompt: give --prompt TEXT, --file FILE, or text on stdin, for example

  run-om generate ARTEFACT --prompt "Once upon a time"
  echo "Once upon a time" | run-om generate ARTEFACT"""


def read_prompts(texts: Sequence[str], file: Path | None) -> list[Prompt]:
    """Return the prompts of --prompt, then of --file; without both, all of stdin as one prompt.

    Raises a usage error when there are none.
    """
    prompts: list[Prompt] = list(texts)
    if file is not None:
        prompts += _from_file(file)
    if not texts and file is None:
        if sys.stdin.isatty():
            raise click.UsageError(_NO_PROMPT)
        text = sys.stdin.read()
        prompts = [text.removesuffix("\n")] if text.strip() else []
    if not prompts:
        raise click.UsageError(_NO_PROMPT)
    return prompts


def _from_file(file: Path) -> list[Prompt]:
    """Read a JSON list of texts or of lists of token ids, else one prompt a line; "-" is stdin."""
    try:
        content = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{file} is no UTF-8 text ({error.reason} at byte {error.start}): write one prompt a "
            "line, or a JSON list of texts"
        ) from None
    if not content.lstrip().startswith("["):
        return [line for line in content.splitlines() if line.strip()]
    try:
        prompts = json.loads(content)
    except ValueError as error:
        raise click.UsageError(
            f"{file} begins with [ but is no JSON list: {error}; write one prompt a line, or a "
            "JSON list of texts"
        ) from None
    for number, prompt in enumerate(prompts, start=1):
        ids = isinstance(prompt, list) and all(type(token) is int for token in prompt)
        if not isinstance(prompt, str) and not ids:
            raise click.UsageError(
                f"prompt {number} of {file} is {prompt!r}: it must be a text or a list of token ids"
            )
    return list(prompts)


@dataclass(frozen=True)
class PromptStyle:
    """How a text is sent: through the model's chat template, or as it is (template None)."""

    template: ChatTemplate | None
    system: str | None

    @classmethod
    def choose(cls, artefact: Path, raw: bool, system: str | None) -> PromptStyle:
        """Take the artefact's chat template if it has one, unless `raw`."""
        from ..chat_template import ChatTemplate

        if not raw:
            template = ChatTemplate.from_folder(artefact) if system else ChatTemplate.find(artefact)
            return cls(template, system)
        if system:
            raise click.UsageError("--system is a part of the chat template, which --raw turns off")
        return cls(None, None)

    @property
    def description(self) -> str:
        """One line for the user."""
        if self.template is None:
            return "plain completion, the prompt as it is"
        return "prompt sent through the model's chat template (--raw sends it as it is)"

    def submit(self, engine: Engine, prompt: Prompt, params: SamplingParams) -> Request:
        """Queue a prompt; a list of token ids is left alone. Raises RequestError."""
        from ..request import RequestError

        if prompt == "":  # a template or a begin token would make it look like something
            raise RequestError("the prompt has no tokens: give at least one character")
        if self.template is None or not isinstance(prompt, str):
            return engine.submit(prompt, params)
        messages = [{"role": "user", "content": prompt}]
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return engine.submit_chat(messages, params)
