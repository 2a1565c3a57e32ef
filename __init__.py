"""pagedom: paged KV caches and packed sequences in offline `.om` models.

    from pagedom import Engine, SamplingParams

Names load when they are first used, so importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .runtime.artifact import Artifact, ArtifactError
    from .runtime.chat_template import ChatTemplate, ChatTemplateError
    from .runtime.engine import Engine, EngineError
    from .runtime.engine_options import EngineOptions
    from .runtime.engine_statistics import EngineStatistics
    from .runtime.request import Completion, Request, RequestError, RequestFailed
    from .runtime.sampling_params import SamplingError, SamplingParams
    from .runtime.tokenizer import Tokenizer

__version__ = "0.1.0"

__all__ = [
    "Artifact",
    "ArtifactError",
    "ChatTemplate",
    "ChatTemplateError",
    "Completion",
    "Engine",
    "EngineError",
    "EngineOptions",
    "EngineStatistics",
    "Request",
    "RequestError",
    "RequestFailed",
    "SamplingError",
    "SamplingParams",
    "Tokenizer",
    "__version__",
]

_HOME_OF = {
    "Artifact": "artifact",
    "ArtifactError": "artifact",
    "ChatTemplate": "chat_template",
    "ChatTemplateError": "chat_template",
    "Completion": "request",
    "Engine": "engine",
    "EngineError": "engine",
    "EngineOptions": "engine_options",
    "EngineStatistics": "engine_statistics",
    "Request": "request",
    "RequestError": "request",
    "RequestFailed": "request",
    "SamplingError": "sampling_params",
    "SamplingParams": "sampling_params",
    "Tokenizer": "tokenizer",
}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".runtime.{_HOME_OF[name]}", __name__)
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
