"""What the host device asks of an executor: the stand-in for the chip itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from ..om_file.ge_graph import TensorDesc
from .error_table import RT_MODEL_EXECUTE

Array = NDArray[Any]


class ExecutorError(RuntimeError):
    """The graph could not be built or run; `code` is what ACL then returns, `text` the detail."""

    def __init__(self, text: str, code: int = RT_MODEL_EXECUTE) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class UnsoundModelError(ExecutorError):
    """What the file says cannot be: its graph or its tables contradict themselves."""


@dataclass(frozen=True)
class ExecutorOptions:
    """Settings of an executor; `threads` 0 = all cores, `checked` = look for reads of garbage."""

    threads: int = 0
    checked: bool = False


class Executor(Protocol):
    """One loaded graph. Called on a stream's thread, one run at a time."""

    @property
    def inputs(self) -> Sequence[TensorDesc]:
        """Inputs in the order that `execute` wants them, without GE's hidden gear input."""

    @property
    def outputs(self) -> Sequence[TensorDesc]:
        """Outputs in index order."""

    def execute(
        self, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> Sequence[tuple[int, ...]]:
        """Run once.

        `inputs`: views over device memory with dtype and the shape set for this run; caches among
        them are updated in place. `outputs`: flat uint8 views over the output buffers. Returns the
        outputs' shapes. Raises ExecutorError.
        """

    def close(self) -> None:
        """Release everything."""


ExecutorFactory = Callable[[Any], Executor]  # takes om_file.om_reader.OmFile
