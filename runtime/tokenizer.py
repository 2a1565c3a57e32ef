"""Text to token ids and back, from an artefact's `tokenizer.json` and `tokenizer_config.json`.

The `tokenizers` library splits text into ids; the way back is our own (`token_bytes`,
`detokenizer`), because text must also come out token by token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .detokenizer import Detokenizer
from .token_bytes import TokenBytes, UnsupportedDecoderError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as _Backend


class TokenizerError(ValueError):
    """A tokenizer that cannot be read or used; the text says what to do."""


class Tokenizer:
    """Encodes text to ids, decodes ids to text, and knows the begin and end tokens.

    bos_id, bos_token, eos_token: None when the model has none.
    add_bos: True when a plain prompt of this model starts with the begin token.
    """

    def __init__(self, backend: _Backend, config: Mapping[str, Any], bos_id: int | None) -> None:
        self._backend = backend
        self.config = config
        self.bos_token = _token_text(config.get("bos_token"))
        self.eos_token = _token_text(config.get("eos_token"))
        if bos_id is None and self.bos_token is not None:
            bos_id = backend.token_to_id(self.bos_token)
        elif bos_id is not None and self.bos_token is None:
            self.bos_token = backend.id_to_token(bos_id)
        self.bos_id: int | None = bos_id
        self.eos_id: int | None = (
            None if self.eos_token is None else backend.token_to_id(self.eos_token)
        )
        self.add_bos = self._find_add_bos()
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        # The pickled state of a decoder is its section of tokenizer.json; the whole file is slow.
        decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        try:
            self.bytes = TokenBytes(backend.id_to_token, decoder, self.special_ids)
        except UnsupportedDecoderError as error:
            raise TokenizerError(f"tokenizer.json: {error}") from None

    @classmethod
    def from_folder(cls, folder: str | Path, bos_id: int | None = None) -> Tokenizer:
        """Load from an artefact's folder; `bos_id` is the manifest's, else the config's is used.

        Raises TokenizerError when a file is absent or damaged.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(
                f"{folder} has no tokenizer.json, so text cannot be turned into tokens: compile "
                "the model again from a checkpoint that has one, or submit token ids"
            )
        # Late, so that a program that submits token ids pays nothing for it.
        from tokenizers import Tokenizer as Backend

        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(f"{path} cannot be read: {error}") from error
        return cls(backend, _read_config(folder / "tokenizer_config.json"), bos_id)

    @property
    def vocab_size(self) -> int:
        """Number of ids the tokenizer knows; the model may have more rows."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        """Return the ids of a text; special tokens written in it become their own ids.

        add_bos: put the begin token first if this model wants one and the text (a rendered chat
        template, say) has not already begun with it.
        """
        ids = list(self._backend.encode(text, add_special_tokens=False).ids)
        if add_bos and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        return ids

    def decode(
        self, ids: Iterable[int], skip_special: bool = True, continuation: bool = False
    ) -> str:
        """Return the text of ids, the same that a Detokenizer fed one by one would give.

        skip_special: leave special tokens out.
        continuation: the ids follow other text, so a leading space is part of the text.
        """
        return self.detokenizer(skip_special, continuation).feed(ids, last=True)

    def detokenizer(self, skip_special: bool = True, continuation: bool = False) -> Detokenizer:
        """Return a new incremental decoder for one answer; parameters as in `decode`."""
        return Detokenizer(self.bytes, skip_special, continuation)

    def token(self, token_id: int) -> str | None:
        """Return the vocabulary entry of an id, None when it has none."""
        text: str | None = self._backend.id_to_token(token_id)
        return text

    def _find_add_bos(self) -> bool:
        """Config first; without a word there, what the tokenizer's own post-processor does."""
        for key in ("add_bos_token", "add_bos"):
            if isinstance(self.config.get(key), bool):
                return bool(self.config[key]) and self.bos_id is not None
        if self.bos_id is None:
            return False
        return list(self._backend.encode("a").ids[:1]) == [self.bos_id]


def _token_text(value: object) -> str | None:
    """Read a token that is written as a string or as an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise TokenizerError(f"{path} holds a {type(config).__name__}: a JSON object is expected")
    return config
