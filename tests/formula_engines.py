"""Engines over artefacts whose next token is a closed formula, of every kind there is.

hand-made     `formula_graph`: one layer of GE-IR, written without the compiler
the others    `formula_forms`: two layers, lowered to every form an NPU can have
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import formula_forms
import formula_graph

from pagedom.runtime.acl.host import HostAcl
from pagedom.runtime.acl.options import AclOptions
from pagedom.runtime.artifact import Artifact
from pagedom.runtime.artifact_backend import ArtifactBackend
from pagedom.runtime.request import Request

HAND_MADE = "hand-made"
KINDS = (HAND_MADE, *formula_forms.KINDS)  # any executor runs these
ALL_KINDS = (*KINDS, *formula_forms.TOKEN_KINDS)  # the oracle does
# Whose ACL calls differ: caches in place, a gear to set, rows to copy, and the last two together.
CALL_KINDS = (HAND_MADE, "gears", "rows", "rows gears")
GEARED_PAGES = 30  # P of a kind with gears, where a test does not care
VOCAB = formula_graph.VOCAB
MAX_SEQ_LEN = formula_graph.MAX_SEQ_LEN


@dataclass
class Artefacts:
    """Writes each artefact once."""

    root: Path
    written: dict[tuple[str, int, int], Artifact] = field(default_factory=dict)

    def __call__(self, kind: str, page_size: int = 16, num_pages: int = GEARED_PAGES) -> Artifact:
        """Return the artefact; P is compiled in where the kind has gears."""
        key = (kind, page_size, num_pages)
        if key not in self.written:
            folder = self.root / "-".join(map(str, key))
            if kind == HAND_MADE:
                formula_graph.write_artifact(folder, page_size)
            else:
                formula_forms.write_artifact(folder, kind, page_size, num_pages)
            self.written[key] = Artifact.open(folder)
        return self.written[key]


def make_backend(
    artifact: Artifact, executor: str = "oracle", self_test: bool = True, **options: Any
) -> ArtifactBackend:
    """Return a backend on a checked host device; `self_test`: it computes a token when it opens."""
    settings = AclOptions(executor=executor, threads=1, checked=True, **options)
    return ArtifactBackend(artifact, HostAcl(settings), self_test=self_test)


def prompt(n: int, salt: int) -> list[int]:
    """Return made-up token ids."""
    return [(11 * i * i + 5 * i + 3 * salt) % VOCAB for i in range(n)]


def continuation(kind: str, tokens: Sequence[int], count: int) -> list[int]:
    """Return the answer of a sequence that runs alone."""
    module = formula_graph if kind == HAND_MADE else formula_forms
    return module.continuation(tokens, count)


def check(kind: str, requests: Iterable[Request]) -> None:
    """Fail unless every request has the formula's answer."""
    for request in requests:
        assert request.error is None
        expected = continuation(kind, request.prompt.tolist(), request.output_tokens.size)
        assert request.output_tokens.tolist() == expected


def check_clean(acl: HostAcl) -> None:
    """Fail if a handle or memory is alive, or something was used wrongly on the way."""
    assert acl.ledger.report() == ""
    assert acl.ledger.created == acl.ledger.destroyed
    assert acl.ledger.usage_errors == []
    assert acl.calls_without_context == []
