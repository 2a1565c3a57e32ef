"""The model families, one file each, named by `model_type`."""

from __future__ import annotations

from .family import Family, Traits
from .llama import LLAMA
from .mistral import MISTRAL
from .qwen2 import QWEN2

__all__ = ["FAMILIES", "Family", "Traits", "families_by_arch", "family_by_type"]

FAMILIES: tuple[Family, ...] = (LLAMA, MISTRAL, QWEN2)


def family_by_type(model_type: object) -> Family | None:
    """Return the family with this `model_type`, or None."""
    return next((f for f in FAMILIES if f.model_type == model_type), None)


def families_by_arch(arch: object) -> tuple[Family, ...]:
    """Return the families that are stored under this GGUF architecture, in table order."""
    return tuple(f for f in FAMILIES if f.gguf_arch == arch)
