"""Every form of a host artefact gives the tokens of the plain one, on both executors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagedom import Engine, SamplingParams

PROMPTS = ["Once upon a time", "Lily and Tom went to", "The little dog", "One day a big red"]
FORMS: dict[str, dict[str, Any]] = {
    "gears": {"gears": "4,4;16,4;64,4;256,5"},
    "rows": {"cache_write": "rows"},
    "rows gears": {"gears": "4,4;16,4;64,4;256,5", "cache_write": "rows"},
}

Compile = Callable[..., Path]


def tokens(artefact: Path, executor: str) -> list[list[int]]:
    params = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    with Engine(artefact, executor=executor, checked=True, max_batch=4) as engine:
        return [list(done.token_ids) for done in engine.generate(PROMPTS, params)]


@pytest.mark.parametrize("executor", ["openvino", "oracle"])
@pytest.mark.parametrize("form", FORMS)
def test_same_tokens(compile_to: Compile, stories: Path, form: str, executor: str) -> None:
    wanted = tokens(compile_to(stories), "openvino")
    assert tokens(compile_to(stories, **FORMS[form]), executor) == wanted
