"""Render a conversation to a prompt with the model's own Jinja template, in a sandbox.

A template comes from whoever published the checkpoint, so it runs without access to Python's
internals and cannot change what it is given. What templates may use beyond plain Jinja is the set
that Hugging Face's `apply_chat_template` offers, because that is what they are written against:
`raise_exception`, `strftime_now`, `tojson` without HTML escapes, loop controls, and the marker
`{% generation %}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]

FILE_NAME = "chat_template.jinja"
_ROLES = "system, user, assistant, tool"


class ChatTemplateError(ValueError):
    """A conversation that cannot be rendered; the text says where the template stopped and why."""


class _RefusalError(TemplateError):
    """Raised by the template itself through raise_exception."""


class _GenerationMarker(Extension):
    """`{% generation %} … {% endgeneration %}` marks what training learns; here it is plain."""

    tags = {"generation"}  # noqa: RUF012 - declared as an instance attribute by Jinja

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One model's template, compiled.

    tokens: special tokens by the name templates use, such as bos_token and eos_token.
    now: clock behind `strftime_now`.
    Raises ChatTemplateError with the line when the source is not valid Jinja.

    >>> ChatTemplate("{{ messages[0].content }}!").render([{"role": "user", "content": "hi"}])
    'hi!'
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._tokens = dict(tokens or {})
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationMarker, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template is not valid Jinja: line {error.lineno}: {error.message}"
            ) from error

    @classmethod
    def find(cls, folder: str | Path) -> ChatTemplate | None:
        """Load an artefact's template, None when it has none (a base model).

        Looks for chat_template.jinja, then for `chat_template` in tokenizer_config.json.
        """
        folder = Path(folder)
        config: Any = {}
        path = folder / "tokenizer_config.json"
        if path.is_file():
            try:
                config = json.loads(path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ChatTemplateError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(config, Mapping):
            raise ChatTemplateError(f"{path} must hold a JSON object")
        own = folder / FILE_NAME
        if own.is_file():
            source: str | None = own.read_text(encoding="utf-8")
        else:
            source = _default_template(config.get("chat_template"))
        return None if source is None else cls(source, _special_tokens(config))

    @classmethod
    def from_folder(cls, folder: str | Path) -> ChatTemplate:
        """Load an artefact's template; raises ChatTemplateError when it has none."""
        template = cls.find(folder)
        if template is None:
            raise ChatTemplateError(
                f"{folder} has no chat template ({FILE_NAME}), so it holds a base model or the "
                "checkpoint came without one: use plain completion (run-om generate, "
                f"Engine.generate), or copy the instruct model's template into {FILE_NAME} there"
            )
        return template

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Return the prompt of a conversation; encode it without adding another begin token.

        messages: mappings with `role` and `content`.
        add_generation_prompt: end with the opening of the assistant's turn.
        variables: more for the template, such as `tools` or `enable_thinking`.
        Raises ChatTemplateError naming the template's line and its reason.
        """
        _check(messages)
        given = {"tools": None, "documents": None, **self._tokens, **variables}
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **given
            )
        except _RefusalError as error:
            raise ChatTemplateError(
                f"the chat template refuses this conversation: {error}"
            ) from error
        except SecurityError as error:
            raise ChatTemplateError(
                f"the chat template{_line(error.__traceback__)} does what the sandbox forbids: "
                f"{error}"
            ) from error
        except Exception as error:  # a template may raise anything Python can
            raise ChatTemplateError(
                f"the chat template failed{_line(error.__traceback__)}: "
                f"{type(error).__name__}: {error}. The roles were {_roles(messages)}"
            ) from error


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise ChatTemplateError("the conversation has no messages: give at least one user message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(
                f"message {index} is {message!r}: it must be an object with a role ({_ROLES}) and "
                "content"
            )


def _default_template(value: object) -> str | None:
    """Read a template given as text, or as a list of named ones, of which "default" is meant."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value}
        chosen = named.get("default")
        if isinstance(chosen, str):
            return chosen
        raise ChatTemplateError(
            f"tokenizer_config.json has the chat templates {sorted(map(str, named))}, but none is "
            'called "default"'
        )
    return None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as models saw it in training: no HTML escapes, keys in the given order."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> NoReturn:
    raise _RefusalError(message)


def _line(traceback: TracebackType | None) -> str:
    """Return " at line N": Jinja maps the frames of a running template to its source lines."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return "" if line is None else f" at line {line}"


def _roles(messages: Sequence[Message]) -> str:
    return ", ".join(message["role"] for message in messages)
