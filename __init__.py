"""pagedom: paged KV caches and packed sequences in offline `.om` models.

    from pagedom import Engine, SamplingParams

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runtime.artifact import Artifact, ArtifactError
    from .runtime.engine import Engine, EngineError
    from .runtime.engine_options import EngineOptions
    from .runtime.request import Completion, Request, RequestError
    from .runtime.sampling_params import SamplingError, SamplingParams

__all__ = [
    "Artifact",
    "ArtifactError",
    "Completion",
    "Engine",
    "EngineError",
    "EngineOptions",
    "Request",
    "RequestError",
    "SamplingError",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    """Load a public name; raises AttributeError for an unknown one."""
    homes = {
        "Artifact": "artifact",
        "ArtifactError": "artifact",
        "Completion": "request",
        "Engine": "engine",
        "EngineError": "engine",
        "EngineOptions": "engine_options",
        "Request": "request",
        "RequestError": "request",
        "SamplingError": "sampling_params",
        "SamplingParams": "sampling_params",
    }
    if name not in homes:
        raise AttributeError(f"module 'pagedom' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f".runtime.{homes[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
