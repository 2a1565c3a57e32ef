"""A folder that `run-om` opens as the closed-form model over printable ASCII letters.

Only the model and the tokenizer are made up; the engine and the commands are the real ones.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from closed_form import VOCAB, ClosedFormBackend, continuation
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from pagedom.runtime.cli import run_om
from pagedom.runtime.engine_options import EngineOptions
from pagedom.runtime.tokenizer import Tokenizer

BOS, EOS = 95, 96
PAGE_SIZE, MAX_SEQ_LEN = 4, 256
TEMPLATE = (
    "<s>{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def letters_tokenizer() -> Tokenizer:
    """One token a letter: id = code - 32; <s> = 95 and </s> = 96."""
    vocab = {chr(code): code - 32 for code in range(32, 127)}
    vocab.update({"<s>": BOS, "</s>": EOS})
    backend = Backend(models.BPE(vocab, []))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend, {"bos_token": "<s>", "add_bos_token": True}, None)


def ids_of(text: str) -> list[int]:
    """Return the prompt ids of a text, begin token first."""
    return [BOS, *(ord(letter) - 32 for letter in text)]


def text_of(ids: list[int]) -> str:
    """Return the text of ids without special tokens."""
    return "".join(chr(i + 32) for i in ids if i < BOS)


def answer(text: str, count: int = 128) -> str:
    """Return what the model says after a text."""
    return text_of(continuation(ids_of(text), count))


class LettersArtefact:
    """The folder, and what was opened from it: (backend, options) pairs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.path = folder, str(folder)
        self.max_seq_len = MAX_SEQ_LEN
        self.opened: list[tuple[ClosedFormBackend, EngineOptions]] = []
        self.fail_at: set[int] = set()
        self.error: Exception | None = None
        module = SimpleNamespace(open_artifact=self._open)
        monkeypatch.setitem(sys.modules, "pagedom.runtime.artifact_backend", module)
        model = SimpleNamespace(vocab_size=VOCAB)
        facts = SimpleNamespace(manifest=SimpleNamespace(max_batch=64, model=model))
        monkeypatch.setattr("pagedom.runtime.artifact.Artifact.open", lambda _path: facts)

    def _open(
        self, _path: Path, options: EngineOptions, _tokenizer: object
    ) -> tuple[ClosedFormBackend, Tokenizer]:
        if self.error is not None:
            raise self.error
        backend = ClosedFormBackend(PAGE_SIZE, self.max_seq_len)
        backend.fail_at = self.fail_at
        self.opened.append((backend, options))
        return backend, letters_tokenizer()


def invoke(*args: object, stdin: str | None = None) -> Result:
    """Run `run-om` with arguments."""
    return CliRunner().invoke(run_om, list(map(str, args)), input=stdin)
