"""What ACL's error numbers mean and what a user can do about them: one row a code.

Ranges: 1xxxxx the caller's or the environment's mistake, 2xxxxx resources or unsupported calls,
3xxxxx business, 5xxxxx internal. Meanings follow CANN's `acl_base.h`, `rt_error_codes.h` and
`ge_error_codes.h`; advice follows CANN's FAQ pages and the issues of public projects.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

# Codes that this project compares with or produces.
SUCCESS: Final = 0
INVALID_PARAM: Final = 100000
UNINITIALIZE: Final = 100001
REPEAT_INITIALIZE: Final = 100002
INVALID_FILE: Final = 100003
INVALID_MODEL_ID: Final = 100011
PARSE_MODEL: Final = 100013
READ_MODEL: Final = 100014
NOT_DYNAMIC: Final = 100019
REPEAT_FINALIZE: Final = 100037
RT_PARAM_INVALID: Final = 107000
RT_INVALID_DEVICE: Final = 107001
RT_CONTEXT_NULL: Final = 107002
RT_STREAM_CONTEXT: Final = 107003
RT_MODEL_CONTEXT: Final = 107004
RT_EVENT_TIMESTAMP: Final = 107006
RT_INVALID_HANDLE: Final = 107017
RT_STREAM_ABORT: Final = 107023
RT_MODEL_RUNNING: Final = 107037
GE_PARAM_INVALID: Final = 145000
GE_MODEL_PATH: Final = 145002
GE_MODEL_DATA_SIZE: Final = 145006
GE_INPUT_ADDR: Final = 145011
GE_INPUT_LENGTH: Final = 145012
GE_GEAR: Final = 145013
BAD_ALLOC: Final = 200000
API_NOT_SUPPORT: Final = 200001
RT_FEATURE_NOT_SUPPORT: Final = 207000
RT_MEMORY_ALLOCATION: Final = 207001
RT_MEMORY_FREE: Final = 207002
RT_NO_DEVICE: Final = 207004
INTERNAL_ERROR: Final = 500000
RT_MODEL_EXECUTE: Final = 507011
RT_STREAM_SYNC_TIMEOUT: Final = 507046
RT_EVENT_SYNC_TIMEOUT: Final = 507047
GE_LOAD_MODEL: Final = 545001
GE_EXECUTE_TIMEOUT: Final = 545601


class ErrorRow(NamedTuple):
    """Meaning of one code and what to do about it ("" where only the detail can tell)."""

    meaning: str
    hint: str = ""


_REBUILD = "The OM comes from an incompatible CANN: rebuild it with compile-model on this CANN."
_CONTEXT = (
    "Streams, events and models belong to the context they were made in: "
    "use them through the Device that made them."
)
_MEMORY = (
    "Lower the number of pages or the largest batch, close other users of the card, "
    "and compare free memory with weights + work memory + page pool."
)
_SOC = (
    "Was the OM built for another chip, or damaged? Compare its target with acl.get_soc_name() "
    "and rebuild it with compile-model --target for this chip."
)
_AICORE = (
    "Usually an index out of range (page ids, positions) or memory that was freed. "
    "Treat the device as lost: restart the process."
)
_HANG = (
    "A kernel or a wait hangs. Raise the time limit only if the step is known to be that long; "
    "otherwise restart the process (a 310B may need a reboot)."
)
_RANKS = "Look at the other ranks first: one died, is late, or a port is blocked."
_ECC = "The memory of this card is faulty: stop using it."
_STREAMS = "Each loaded OM takes many streams: unload models or use fewer gears."

_TABLE: dict[int, ErrorRow] = {
    # -- ACL layer: the caller's or the environment's mistake
    100000: ErrorRow(
        "invalid parameter",
        "For a model run: compare each input's shape with the model's own (run-om inspect).",
    ),
    100001: ErrorRow("ACL is not initialised", "Call acl.init() first (Device does it)."),
    100002: ErrorRow("ACL is already initialised", "Harmless: another library did it first."),
    100003: ErrorRow("invalid file or path", "Check that the path exists and is readable."),
    100011: ErrorRow("bad model id", "The model was not loaded, or was unloaded before."),
    100012: ErrorRow("model cannot be deserialised", _REBUILD),
    100013: ErrorRow("model cannot be parsed", _REBUILD),
    100014: ErrorRow("model cannot be read", _REBUILD),
    100015: ErrorRow("bad model size", _REBUILD),
    100016: ErrorRow("a model attribute is missing", _REBUILD),
    100017: ErrorRow("model input mismatch", "Compare the inputs with run-om inspect."),
    100018: ErrorRow("model output mismatch", "Compare the outputs with run-om inspect."),
    100019: ErrorRow(
        "model is not dynamic", "Drop the dynamic-shape call, or rebuild the OM with gears."
    ),
    100026: ErrorRow("data type not supported"),
    100027: ErrorRow("format mismatch"),
    100037: ErrorRow("ACL is already finalised"),
    100039: ErrorRow(
        "a stub library is loaded instead of the real one",
        "Remove '.../devlib' from LD_LIBRARY_PATH; it is for linking only.",
    ),
    148049: ErrorRow(
        "ASCEND_OPP_PATH is missing or wrong",
        "Source CANN's set_env.sh in this process and check that the opp folder is readable.",
    ),
    148053: ErrorRow("bad bundle id"),
    # -- ACL layer: resources
    200000: ErrorRow("host memory exhausted", "Free host memory or huge pages."),
    200001: ErrorRow(
        "call not supported for this model or chip",
        "On 310B use gears; on a range OM read the output's tensor desc instead of cur dims.",
    ),
    200003: ErrorRow("address not aligned", "Device addresses must be multiples of 64."),
    200004: ErrorRow("resource mismatch"),
    200005: ErrorRow("invalid resource handle"),
    500000: ErrorRow("unknown internal error"),
    500001: ErrorRow("internal error", _SOC),
    500002: ErrorRow("GE failed; the detail says why", _SOC),
    500003: ErrorRow("the runtime failed; the detail says why"),
    500004: ErrorRow("the driver failed; the detail says why"),
    # -- runtime: the caller's mistake
    107000: ErrorRow("invalid parameter"),
    107001: ErrorRow(
        "invalid device id",
        "The id must be below acl.rt.get_device_count(); "
        "ASCEND_RT_VISIBLE_DEVICES renumbers devices from 0.",
    ),
    107002: ErrorRow(
        "no current context on this thread",
        "Every thread must call set_context first; use the Device's methods.",
    ),
    107003: ErrorRow("stream is not in the current context", _CONTEXT),
    107004: ErrorRow("model is not in the current context", _CONTEXT),
    107006: ErrorRow("event has no time stamp", "Elapsed times need events with TIME_LINE."),
    107007: ErrorRow("event time stamps are reversed"),
    107008: ErrorRow("address not aligned", "Device addresses must be multiples of 64."),
    107015: ErrorRow("callback not registered"),
    107017: ErrorRow("invalid handle", "It was never made here, or was destroyed before."),
    107019: ErrorRow("wait timed out", _HANG),
    107020: ErrorRow("task timed out", _HANG),
    107022: ErrorRow("a task is being aborted"),
    107023: ErrorRow("the stream is being aborted"),
    107037: ErrorRow("model is still running", "Synchronise its stream before unloading."),
    # -- runtime: resources
    207000: ErrorRow(
        "feature not supported",
        "After an upgrade: driver, firmware and CANN do not match; raise the driver to CANN's "
        "minimum.",
    ),
    207001: ErrorRow("device memory allocation failed", _MEMORY),
    207002: ErrorRow("device memory could not be freed"),
    207003: ErrorRow("AI core overflow"),
    207004: ErrorRow(
        "no device",
        "In a container map /dev/davinciN, davinci_manager, devmm_svm, hisi_hdc and the driver "
        "folder; check that no other container holds the card.",
    ),
    207005: ErrorRow("resource allocation failed"),
    207006: ErrorRow("no permission", "Check the groups and rights of /dev/davinci*."),
    207007: ErrorRow("no event left", _STREAMS),
    207008: ErrorRow("no stream left", _STREAMS),
    207009: ErrorRow("no notify left", _STREAMS),
    207010: ErrorRow("no model resource left", _STREAMS),
    207016: ErrorRow("vector core overflow"),
    207017: ErrorRow("overflow"),
    207018: ErrorRow("device out of memory", _MEMORY),
    # -- runtime: internal
    507000: ErrorRow("runtime internal error"),
    507001: ErrorRow("task scheduler internal error"),
    507002: ErrorRow("stream task queue is full", "Synchronise the stream more often."),
    507008: ErrorRow("chip version error", _SOC),
    507009: ErrorRow(
        "task type not supported",
        "On a virtual NPU slice: use a whole card, or a static OM built for the slice.",
    ),
    507010: ErrorRow("device lost its heartbeat", "Look at npu-smi info; restart."),
    507011: ErrorRow(
        "model execution failed",
        "Bad input values (page ids, positions out of range), too large a batch, or device "
        "memory exhausted: the EZ/EE lines of the detail tell.",
    ),
    507012: ErrorRow("report timed out", _HANG),
    507013: ErrorRow("copy engine error", _AICORE),
    507014: ErrorRow("AI core timeout", _HANG),
    507015: ErrorRow("AI core exception", _AICORE),
    507016: ErrorRow("AI core trap", _AICORE),
    507017: ErrorRow("AI CPU timeout", _HANG),
    507018: ErrorRow("AI CPU exception", _AICORE),
    507033: ErrorRow(
        "device set-up error",
        "With EL0004 in the detail the device memory is used up: close its other users. "
        "Otherwise driver, firmware and CANN do not match or the device is resetting: "
        "npu-smi info.",
    ),
    507034: ErrorRow("vector core timeout", _HANG),
    507035: ErrorRow("vector core exception", _AICORE),
    507036: ErrorRow("vector core trap", _AICORE),
    507042: ErrorRow("AI core read out of range", _AICORE),
    507043: ErrorRow("AI core write out of range", _AICORE),
    507044: ErrorRow("vector core read out of range", _AICORE),
    507045: ErrorRow("vector core write out of range", _AICORE),
    507046: ErrorRow("stream did not finish within the time limit", _HANG),
    507047: ErrorRow("event did not complete within the time limit", _HANG),
    507048: ErrorRow("FFTS+ timeout (typical for stuck collectives)", _RANKS),
    507049: ErrorRow("FFTS+ exception", _RANKS),
    507053: ErrorRow("device memory error", _ECC),
    507054: ErrorRow("multi-bit ECC error of the device memory", _ECC),
    507055: ErrorRow("suspect device memory", _ECC),
    507056: ErrorRow("link error", _RANKS),
    507057: ErrorRow("remote error", _RANKS),
    507899: ErrorRow("driver internal error", "Look at npu-smi info and dmesg; restart."),
    507901: ErrorRow("host-device channel disconnected", "Look at npu-smi info; restart."),
    507904: ErrorRow("a collective's retry failed", _RANKS),
    # -- GE
    145000: ErrorRow(
        "GE parameter invalid",
        "With E13025: number or size of the dataset's buffers differs from the model's; a gear "
        "model also wants a buffer for 'ascend_mbatch_shape_data'.",
    ),
    145001: ErrorRow("GE is not initialised"),
    145002: ErrorRow(
        "bad model path",
        "Use an existing, readable, absolute path to model.om (owner and rights too).",
    ),
    145003: ErrorRow("bad model id"),
    145006: ErrorRow("bad model data size", _REBUILD),
    145007: ErrorRow("bad model data address"),
    145011: ErrorRow("bad address of the dynamic input"),
    145012: ErrorRow(
        "bad length of a dynamic input", "The given dims differ from a dim that the OM has fixed."
    ),
    145013: ErrorRow("the dims are no compiled gear", "Choose one of the OM's gears."),
    145019: ErrorRow("plugin path of GE (opp) is wrong", "Source CANN's set_env.sh."),
    145020: ErrorRow("format not supported"),
    145021: ErrorRow("shape not supported"),
    145022: ErrorRow("data type not supported"),
    245000: ErrorRow("GE could not allocate memory", _MEMORY),
    245001: ErrorRow("GE memory operation failed"),
    245002: ErrorRow("GE device memory operation failed"),
    545000: ErrorRow("GE internal error"),
    545001: ErrorRow("GE could not load the model", _SOC),
    545002: ErrorRow("model partition cannot be loaded", _SOC),
    545003: ErrorRow("weight partition cannot be loaded", _SOC),
    545004: ErrorRow("task partition cannot be loaded", _SOC),
    545005: ErrorRow("kernel partition cannot be loaded", _SOC),
    545009: ErrorRow("model cannot be unloaded"),
    545601: ErrorRow("model execution timed out", _HANG),
}
_TABLE.update(
    {code: ErrorRow("graph capture error") for code in (*range(107024, 107032), 107036, 107038)}
)

ERRORS = MappingProxyType(_TABLE)

# After these the device cannot be trusted: kernels hang, or its memory was written out of bounds.
DEVICE_LOST: Final = frozenset(
    code for code, each in _TABLE.items() if each.hint in (_AICORE, _HANG, _ECC)
) | {507010, 507048, 507049, 507056, 507057, 507899, 507901, 507904}

# How the host device begins what it says of a file: it reads it itself, and no CANN is to blame.
UNSOUND_FILE: Final = "not a sound model file"

# Signatures inside the detail text that say more than the code: (text, advice).
DETAIL_HINTS: Final = (
    (
        UNSOUND_FILE,
        "The file is damaged, cut short, changed or no OM: `run-om verify` says where. Copy the "
        "artefact again, or compile the model again.",
    ),
    (
        "opp version of the model does not match",
        "The OM is tied to the operator package it was built with: rebuild it on this CANN, or "
        "install the same one.",
    ),
    ("EL0004", _MEMORY),
    ("EE2002", "ASCEND_RT_VISIBLE_DEVICES has a duplicate or invalid entry."),
    ("E10041", "External weights are missing: copy the weight folder next to model.om."),
)


def row(code: int) -> ErrorRow:
    """Return the table's row, or a row saying that the code is unknown."""
    return ERRORS.get(code) or ErrorRow(f"unknown error code ({_family(code)})")


def _family(code: int) -> str:
    families = {1: "caller's or environment's mistake", 2: "resources", 3: "business"}
    return families.get(code // 100000, "internal")
