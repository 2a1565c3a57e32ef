"""TASK_INFO: a domi.ModelTaskDef, the list of kernels a chip runs.

A host model has no kernels, but GE's loader refuses an empty partition, so ours says one stream.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import cast

from google.protobuf.message import DecodeError

from .errors import OmFormatError
from .ge_proto import message_class


@dataclass(frozen=True)
class TaskInfo:
    """The totals of a ModelTaskDef; sizes in bytes."""

    num_tasks: int = 0
    memory_bytes: int = 0
    weight_bytes: int = 0
    stream_num: int = 1
    event_num: int = 0
    batch_num: int = 0
    kernels: tuple[tuple[str, int], ...] = ()  # (kernel name, number of tasks), most used first

    def to_bytes(self) -> bytes:
        """Serialize the totals without tasks; never empty, as the loader demands."""
        message = message_class("ModelTaskDef")(
            memory_size=self.memory_bytes,
            weight_size=self.weight_bytes,
            stream_num=max(1, self.stream_num),
            event_num=self.event_num,
            batch_num=self.batch_num,
        )
        return cast(bytes, message.SerializeToString(deterministic=True))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> TaskInfo:
        """Parse the partition; raises OmFormatError when it is no ModelTaskDef."""
        message = message_class("ModelTaskDef")()
        try:
            message.ParseFromString(bytes(data))
        except DecodeError as error:
            raise OmFormatError(
                f"TASK_INFO of {len(data)} bytes is not a domi.ModelTaskDef message ({error})"
            ) from None
        names = Counter(
            task.kernel.kernel_name or task.kernel.stub_func or f"task type {task.type}"
            for task in message.task
        )
        return cls(
            num_tasks=len(message.task),
            memory_bytes=message.memory_size,
            weight_bytes=message.weight_size,
            stream_num=message.stream_num,
            event_num=message.event_num,
            batch_num=message.batch_num,
            kernels=tuple(names.most_common()),
        )
