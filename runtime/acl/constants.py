"""The integers of ACL's C headers: pyACL exports none of them, so every user declares its own.

Values follow CANN's public `acl_base.h`, `acl_rt.h` and `acl_mdl.h`.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Final


class MallocPolicy(IntEnum):
    """Page size wanted for device memory; HUGE_FIRST falls back to normal pages."""

    HUGE_FIRST = 0
    HUGE_ONLY = 1
    NORMAL_ONLY = 2
    HUGE_FIRST_P2P = 3
    HUGE_ONLY_P2P = 4
    NORMAL_ONLY_P2P = 5
    HUGE1G_ONLY = 6
    HUGE1G_ONLY_P2P = 7


class MemcpyKind(IntEnum):
    """Direction of a copy."""

    HOST_TO_HOST = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    DEFAULT = 4
    HOST_BUF_TO_DEVICE = 5
    INNER_DEVICE_TO_DEVICE = 6
    INTER_DEVICE_TO_DEVICE = 7


class MemAttr(IntEnum):
    """Memory that `rt.get_mem_info` asks about: 310P and 310B have DDR, 910x have HBM."""

    DDR = 0
    HBM = 1
    DDR_HUGE = 2
    DDR_NORMAL = 3
    HBM_HUGE = 4
    HBM_NORMAL = 5
    DDR_P2P_HUGE = 6
    DDR_P2P_NORMAL = 7
    HBM_P2P_HUGE = 8
    HBM_P2P_NORMAL = 9
    HBM_HUGE1G = 10
    HBM_HUGE1G_P2P = 11


class AclFormat(IntEnum):
    """Memory formats; everything of ours is ND."""

    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    NCL = 47


class RunMode(IntEnum):
    """DEVICE: the process runs on the chip's own CPU (RC form); HOST: on the host (EP form)."""

    DEVICE = 0
    HOST = 1


class EventFlag(IntFlag):
    """What an event can do; elapsed times need TIME_LINE."""

    SYNC = 1
    CAPTURE_STREAM_PROGRESS = 2
    TIME_LINE = 8
    EXTERNAL = 0x20
    IPC = 0x40


class StreamStatus(IntEnum):
    """Answer of `rt.stream_query`."""

    COMPLETE = 0
    NOT_READY = 1


class EventStatus(IntEnum):
    """Answer of `rt.query_event_status`; the deprecated `rt.query_event` has the opposite sense."""

    NOT_READY = 0
    COMPLETE = 1


class LoadAttr(IntEnum):
    """Keys of `mdl.set_config_opt`."""

    PRIORITY = 0
    LOAD_TYPE = 1
    PATH = 2
    MEM_ADDR = 3
    MEM_SIZE = 4
    WEIGHT_ADDR = 5
    WEIGHT_SIZE = 6
    WORKSPACE_ADDR = 7
    WORKSPACE_SIZE = 8
    INPUT_QUEUE_NUM = 9
    INPUT_QUEUE_ADDR = 10
    OUTPUT_QUEUE_NUM = 11
    OUTPUT_QUEUE_ADDR = 12
    WORKSPACE_MEM_OPTIMIZE = 13
    WEIGHT_PATH = 14
    WITHOUT_GRAPH = 28


class LoadType(IntEnum):
    """Values of LoadAttr.LOAD_TYPE."""

    FROM_FILE = 1
    FROM_FILE_WITH_MEM = 2
    FROM_MEM = 3
    FROM_MEM_WITH_MEM = 4


class ExecAttr(IntEnum):
    """Keys of `mdl.set_exec_config_opt`."""

    STREAM_SYNC_TIMEOUT = 0
    EVENT_SYNC_TIMEOUT = 1
    WORK_ADDR = 2
    WORK_SIZE = 3


GEAR_INPUT_NAME: Final = "ascend_mbatch_shape_data"  # ATC's hidden input of a gear model
MAX_DIMS: Final = 128  # sum over all inputs in one dims dict
MAX_NAME_BYTES: Final = 128
ALIGN_BYTES: Final = 64  # start of every device allocation, and of every carved tensor
SIZE_TOLERANCE_BYTES: Final = 64  # a static model accepts user buffers this much too small
