"""The UTF-8 bytes of each vocabulary entry, after the `decoder` section of a tokenizer.json.

Two kinds of vocabularies matter here:

byte-level   every entry is written in a 256-letter alphabet, one letter a byte ("Ġhello");
byte-fallback   entries are text with U+2581 for a space ("▁hello"), and `<0xE4>` is one raw byte.

Entries may hold parts of a character, so the bytes of several tokens are joined before decoding.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnsupportedDecoderError(ValueError):
    """A tokenizer.json whose decoder is not one we can run token by token."""


@dataclass
class DecoderRules:
    """What a decoder section says, flattened."""

    byte_level: bool = False
    byte_fallback: bool = False
    replaces: list[tuple[str, str]] = field(default_factory=list)
    strip_left: str = ""  # one character removed up to strip_count times from the start of the text
    strip_count: int = 0
    first_token_drops: str = ""  # Metaspace: the first token loses all of these
    joined: bool = False


class TokenBytes:
    """Looks up bytes by token id, lazily: a large vocabulary costs nothing up front."""

    def __init__(
        self,
        id_to_token: Callable[[int], str | None],
        decoder: dict[str, Any] | None,
        special_ids: frozenset[int],
    ) -> None:
        self.rules = parse_decoder(decoder)
        self.special_ids = special_ids
        self._id_to_token = id_to_token
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """Return the bytes of a token; an id without an entry (padding rows) has none."""
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._spell(self._id_to_token(token_id) or "")
        return found

    def first(self, token_id: int) -> bytes:
        """Return the bytes of a token that starts a text."""
        drops = self.rules.first_token_drops
        if not drops:
            return self[token_id]
        return self._spell((self._id_to_token(token_id) or "").replace(drops, ""))

    def _spell(self, token: str) -> bytes:
        rules = self.rules
        if rules.byte_level:
            try:
                return bytes(_BYTE_OF_LETTER[letter] for letter in token)
            except KeyError:  # an added token, written as plain text
                return token.encode()
        for old, new in rules.replaces:
            token = token.replace(old, new)
        if rules.byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        return token.encode()


def parse_decoder(decoder: dict[str, Any] | None) -> DecoderRules:
    """Flatten a decoder section; raises UnsupportedDecoderError naming the part we cannot run."""
    rules = DecoderRules()
    if decoder is None:
        raise UnsupportedDecoderError(
            "it has no decoder section, so tokens cannot be joined to text; supported are "
            "ByteLevel, Metaspace, and Replace/ByteFallback/Fuse/Strip sequences"
        )
    parts = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    for part in parts:
        _add_part(rules, part)
    if rules.byte_level and (rules.byte_fallback or rules.replaces):
        raise UnsupportedDecoderError("its decoder mixes ByteLevel with Replace or ByteFallback")
    return rules


def _add_part(rules: DecoderRules, part: dict[str, Any]) -> None:
    kind = part.get("type")
    if kind == "ByteLevel":
        rules.byte_level = rules.joined = True
    elif kind == "ByteFallback":
        rules.byte_fallback = True
    elif kind == "Fuse":
        rules.joined = True
    elif kind == "Replace" and "String" in part["pattern"] and not rules.joined:
        rules.replaces.append((part["pattern"]["String"], part["content"]))
    elif kind == "Strip" and part.get("stop", 0) == 0 and rules.joined:
        rules.strip_left, rules.strip_count = part["content"], part["start"]
    elif kind == "Metaspace":
        mark = part.get("replacement", "▁")
        rules.replaces.append((mark, " "))
        if part.get("prepend_scheme", "always") != "never":
            rules.first_token_drops = mark
    else:
        raise UnsupportedDecoderError(
            f"its decoder has the part {part!r}; supported are ByteLevel, Metaspace, and sequences "
            "of Replace (a string, before Fuse), ByteFallback, Fuse and Strip (from the left)"
        )


def _byte_of_letter() -> dict[str, int]:
    """Build the byte-level alphabet: printable Latin-1 is itself, other bytes follow U+0100.

    Source: the byte encoder of GPT-2, which every byte-level BPE vocabulary has kept.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return letters


_BYTE_OF_LETTER = _byte_of_letter()
