"""What executes a GE-IR graph on the host device.

`openvino` is fast and asks for pages of a multiple of 32 tokens; `oracle` is numpy, follows the
operators' documents to the letter, takes any page size and reports reads of unwritten slots.
"""

from __future__ import annotations

from ...om_file.om_reader import OmFile
from ..error_table import GE_LOAD_MODEL
from ..executor import Executor, ExecutorError, ExecutorOptions

__all__ = ["EXECUTORS", "Executor", "ExecutorError", "ExecutorOptions", "make_executor"]

EXECUTORS = ("openvino", "oracle")


def make_executor(kind: str, om: OmFile, options: ExecutorOptions | None = None) -> Executor:
    """Return an executor for the first model of an open `.om` file, which must stay open.

    Raises ExecutorError for an unknown kind or a graph with operators that it cannot execute.
    """
    options = options or ExecutorOptions()
    if kind == "oracle":
        from .oracle import OracleExecutor

        return OracleExecutor(om, options)
    if kind == "openvino":
        from .openvino import OpenVinoExecutor

        return OpenVinoExecutor(om, options)
    raise ExecutorError(
        f"unknown executor {kind!r}: known are {', '.join(EXECUTORS)}", GE_LOAD_MODEL
    )
