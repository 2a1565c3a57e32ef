"""The page sizes that an executor of the host device takes."""

from __future__ import annotations

OPENVINO_BLOCK = 32  # tokens of a kernel block; a page is made of whole ones


def takes_pages(executor: str, page_size: int) -> bool:
    """Return whether an executor runs a model with pages of so many tokens."""
    return executor != "openvino" or page_size % OPENVINO_BLOCK == 0
