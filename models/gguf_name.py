"""What a model is called whose checkpoint is a GGUF file."""

from __future__ import annotations

import re
from pathlib import Path

# Type of the weights at the end of a name, as ggml's naming rules put it: -Q4_K_M, .IQ2_XXS, -F16.
_WEIGHT_TYPE = re.compile(
    r"[.\-_](?:I?Q\d(?:_[0-9A-Z]{1,3}){0,2}|TQ\d_\d|MXFP4(?:_MOE)?|BF16|FP?(?:16|32))$",
    re.IGNORECASE,
)
_SAYS_NOTHING = re.compile(r"(?:ggml[.\-_])?model", re.IGNORECASE)


def gguf_name(path: Path) -> str:
    """Return the file's name without its weight type, which does not outlive the compilation.

    "" for names such as model.gguf: then the metadata's `general.name` is the better one. It is not
    preferred in general, because converters make it up from the folder of a training run.

    >>> gguf_name(Path("SmolLM2-135M-Instruct.Q4_1.gguf"))
    'SmolLM2-135M-Instruct'
    """
    name = _WEIGHT_TYPE.sub("", path.stem)
    return "" if _SAYS_NOTHING.fullmatch(name) else name
