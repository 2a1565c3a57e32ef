"""What callers submit, in its various forms, and the token ids it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .request import RequestError, Tokens
from .sampling_params import SamplingParams

if TYPE_CHECKING:
    from .chat_template import ChatTemplate, Message
    from .tokenizer import Tokenizer

Prompt = str | Sequence[int]


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer | None) -> Tokens:
    """Return the ids of a prompt, int32 [prompt_len]; raises RequestError when it has none."""
    if not isinstance(prompt, str):
        return _as_ids(prompt)
    if tokenizer is None:
        raise RequestError("this engine has no tokenizer: submit token ids")
    return np.array(tokenizer.encode(prompt), np.int32)


def encode_chat(
    template: ChatTemplate, messages: Sequence[Message], tokenizer: Tokenizer | None
) -> Tokens:
    """Return the ids of a conversation, int32; raises ChatTemplateError, RequestError."""
    if tokenizer is None:
        raise RequestError("this engine has no tokenizer, so it cannot chat: submit token ids")
    # The template writes the begin token itself where the model wants one.
    return np.array(tokenizer.encode(template.render(messages), add_bos=False), np.int32)


def _as_ids(prompt: Sequence[int]) -> Tokens:
    """Check that `prompt` is a flat sequence of integers and return it as int32."""
    ids = np.asarray(prompt)
    if ids.size == 0:
        return np.empty(0, np.int32)
    if ids.ndim == 1 and ids.dtype.kind == "O" and all(type(token) is int for token in prompt):
        ids = np.clip(ids, -1, np.iinfo(np.int32).max).astype(np.int64)  # ids beyond 64 bits
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise RequestError(
            f"a prompt is a text or a flat list of token ids, got {type(prompt).__name__} of shape "
            f"{ids.shape} and dtype {ids.dtype}"
        )
    limits = np.iinfo(np.int32)
    tokens: Tokens = np.clip(ids, limits.min, limits.max).astype(np.int32)
    return tokens


def prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list of prompts: a single text or list of ids becomes a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    texts, ids = [], []
    for item in prompts:
        if isinstance(item, (int, np.integer)):
            ids.append(int(item))
        else:
            texts.append(item)
    if ids and texts:
        raise RequestError("token ids and prompts are mixed: give a list of prompts")
    return [ids] if ids else list(texts)


def params_for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """Return `count` parameters; raises ValueError for a list of another length."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    each = list(params)
    if len(each) != count:
        raise ValueError(
            f"{count} prompts but {len(each)} sampling parameters: give one or {count}"
        )
    return each
