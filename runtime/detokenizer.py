"""Text of an answer as its tokens arrive: whole characters only, each sent as soon as it is whole.

A character may be spread over up to four tokens. At most three bytes are held back (so at most
three tokens that carry a byte each), work is linear in the number of tokens, and U+FFFD appears
only for bytes that can no longer become a character.

    tokens   <0xF0>   <0x9F>   <0x98>   <0x80>
    deltas   ""       ""       ""       "😀"

The replacement rule is that of the tokenizers library for each kind of vocabulary: byte-fallback
replaces every stray byte, byte-level replaces each broken character once. There is one difference,
which streaming forces: the library gives up a whole run of raw bytes when one of them is stray,
while characters that were complete before it have already been sent here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable

from .token_bytes import TokenBytes

_STRAY_BYTE = re.compile("[\udc80-\udcff]")


class Detokenizer:
    """Turns the ids of one answer into text deltas whose concatenation is the whole text.

    >>> stream = tokenizer.detokenizer()                                        # doctest: +SKIP
    >>> [stream.feed([i]) for i in (320, 417, 410, 243, 162, 155, 131)]         # doctest: +SKIP
    ['H', 'i', ' ', '', '', '', '😀']
    """

    def __init__(
        self, token_bytes: TokenBytes, skip_special: bool = True, continuation: bool = False
    ) -> None:
        self._bytes = token_bytes
        self._skipped = token_bytes.special_ids if skip_special else frozenset[int]()
        rules = token_bytes.rules
        # Raw bytes: a stray byte becomes a lone surrogate, then U+FFFD; one for each byte.
        self._each_byte = rules.byte_fallback
        errors = "surrogateescape" if rules.byte_fallback else "replace"
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)
        self._first_token = bool(rules.first_token_drops) and not continuation
        self._to_strip = 0 if continuation else rules.strip_count
        self._strip = rules.strip_left

    def feed(self, ids: Iterable[int], last: bool = False) -> str:
        """Take the next ids and return the text that is now certain, maybe "".

        last: nothing follows, so bytes held back come out as U+FFFD.
        """
        pieces = []
        for token_id in ids:
            if token_id in self._skipped:
                continue
            if self._first_token:
                self._first_token = False
                pieces.append(self._bytes.first(token_id))
            else:
                pieces.append(self._bytes[token_id])
        text = self._decoder.decode(b"".join(pieces), last)
        if self._each_byte and not text.isascii():
            text = _STRAY_BYTE.sub("\ufffd", text)
        return self._strip_start(text) if self._to_strip else text

    def finish(self) -> str:
        """Return what was held back: "" unless the answer ends inside a character."""
        return self.feed((), last=True)

    def _strip_start(self, text: str) -> str:
        while text and self._to_strip:
            if not text.startswith(self._strip):
                self._to_strip = 0
                break
            text = text[len(self._strip) :]
            self._to_strip -= 1
        return text
