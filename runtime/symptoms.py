"""Messages people search for that carry no code of ours: where they come from, what to do.

`docs/troubleshooting.md` is generated from this table, the table of ACL codes and the table of
ATC codes (`tools/troubleshooting.py`). Causes and cures were collected from vendors' pages and
from issues of public projects; none was reproduced on a device here.
"""

from __future__ import annotations

from typing import NamedTuple


class Symptom(NamedTuple):
    """What is seen, why, and what to do; `phase` is install, compile, load, run or cluster."""

    phase: str
    signature: str
    cause: str
    cure: str


_SOURCE_ENV = "Source CANN's set_env.sh in the process that fails, a service or container too."

SYMPTOMS = (
    Symptom(
        "install",
        "No module named 'acl'",
        "CANN's environment is not set, or another python runs",
        _SOURCE_ENV + " PYTHONPATH must have <cann>/python/site-packages.",
    ),
    Symptom(
        "install",
        "libascendcl.so / libhccl.so / libmsprofiler.so / libascend_dump.so: cannot open shared "
        "object file",
        "LD_LIBRARY_PATH lacks CANN in this process, even if the shell has it",
        _SOURCE_ENV + " The driver's libraries are below /usr/local/Ascend/driver/lib64.",
    ),
    Symptom(
        "install",
        "cannot allocate memory in static TLS block (libgomp)",
        "aarch64: thread-local space is used up by libraries loaded before",
        "Import acl first, or preload that libgomp with LD_PRELOAD.",
    ),
    Symptom(
        "install",
        "undefined symbol ... (libraries of opp or host_cpu)",
        "two CANN releases are mixed on the paths",
        "Keep one: compare ASCEND_HOME_PATH, ASCEND_OPP_PATH and LD_LIBRARY_PATH (run-om doctor).",
    ),
    Symptom(
        "install",
        "EH0003 / EH0004, or 107000 from acl.init",
        "the configuration is no JSON, is not there, or differs from the process's first init",
        "Correct the file or its path; give every acl.init of a process the same one.",
    ),
    Symptom(
        "install",
        "EE1001 / EK0001 with set_device",
        "the device id is not below the number of devices",
        "ASCEND_RT_VISIBLE_DEVICES renumbers devices from 0: check it.",
    ),
    Symptom(
        "install",
        "EE2002",
        "ASCEND_RT_VISIBLE_DEVICES has a duplicate or an invalid entry",
        "Correct the list.",
    ),
    Symptom(
        "install",
        "EE1015, or 207000 after an upgrade",
        "driver and CANN do not fit each other",
        "Raise the driver to the minimum of this CANN.",
    ),
    Symptom(
        "install",
        "no device / -8005 inside a container",
        "device nodes are not mapped, or another container holds the card",
        "Map /dev/davinciN, davinci_manager, devmm_svm, hisi_hdc and the driver's folder.",
    ),
    Symptom(
        "install",
        "libatb.so: cannot open shared object file",
        "nnal is not set up; torch_npu wants it, an OM does not",
        "Source nnal's set_env.sh, or run without torch_npu.",
    ),
    Symptom(
        "compile",
        "BrokenPipeError: [Errno 32] Broken pipe / Killed / main process disappeared",
        "the kernel's OOM killer ended a compile process of ATC",
        "Use fewer compile processes (--compile-jobs 1), close other programs, add swap.",
    ),
    Symptom(
        "compile",
        "ATC run failed, Please check the detail log",
        "the last line of every failed conversion; the codes after it say why",
        "compile-model prints each code with its cause; the full output is in the log it names.",
    ),
    Symptom(
        "compile",
        "unknown command line flag",
        "this release of atc lacks the option",
        "Install a newer CANN, or drop the option that asked for it.",
    ),
    Symptom(
        "compile",
        "The path can only contain 'a-z' 'A-Z' '0-9' '-' '.' '_' and chinese character",
        "ATC refuses paths with spaces and other signs, links resolved",
        "compile-model works around it; a script of --emit atc has to lie in a plain folder.",
    ),
    Symptom(
        "compile",
        "No module named 'decorator' / 'sympy' / 'te' / 'tbe'",
        "ATC compiles kernels with the python that is first on PATH",
        "Install the module for that python; for te and tbe " + _SOURCE_ENV.lower(),
    ),
    Symptom(
        "compile",
        "OpsManager init failed / GELib init failed",
        "the python of the kernel compiler is broken or incomplete",
        "Install numpy, decorator, sympy, scipy, psutil, attrs, cffi, protobuf for it.",
    ),
    Symptom(
        "compile",
        "ATC takes hours on an aarch64 machine with many cores",
        "its processes wander between memory nodes",
        "Bind it: numactl --cpunodebind=0 --membind=0 compile-model ...",
    ),
    Symptom(
        "compile",
        "google.protobuf.message.DecodeError, or a model above 2 GB",
        "a protobuf message must be under 2 GiB",
        "Keep the tensors as external data beside the .onnx.",
    ),
    Symptom(
        "load",
        "model.om is not a sound model file",
        "the file is damaged, cut short, changed or no OM; said without CANN, by the host device",
        "`run-om verify` says where. Copy the artefact again, or compile the model again.",
    ),
    Symptom(
        "load",
        "opp version of the model does not match the current opp run package",
        "an OM with open dims is tied to the operator package it was built with",
        "Compile it again with this CANN, or install the same one.",
    ),
    Symptom(
        "load",
        "segmentation fault in load_from_mem",
        "a device address was given where a host address is wanted (EP form)",
        "Use load_from_file; run-om does.",
    ),
    Symptom(
        "load",
        "E10041 at load time",
        "the folder of external weights is not beside model.om",
        "Copy the artefact's whole folder.",
    ),
    Symptom(
        "run",
        "E13025, or 145000",
        "number or size of the buffers differs from the model's",
        "Compare with run-om inspect; a geared model has a hidden input "
        "'ascend_mbatch_shape_data'.",
    ),
    Symptom(
        "run",
        "dynamic_batch_size not specified, or ACL: invalid parameter (ais_bench)",
        "the OM has gears of --dynamic_dims, or a shape that is none of them was asked for",
        "Choose one of its gears: run-om inspect shows them; run-om does it by itself.",
    ),
    Symptom(
        "run",
        "EH0011 / EE1005, or 200001",
        "a call that this OM or this chip does not have, such as open shapes on 310B",
        "On 310B use gears.",
    ),
    Symptom(
        "run",
        "out i size is zero",
        "the OM does not know an output's size",
        "Allocate for the largest shape; run-om does.",
    ),
    Symptom(
        "run",
        "results are zeros, NaN or garbage, without an error",
        "a buffer was freed or reused before the copy ended, the pool was not zeroed, or an "
        "in-place update was lost",
        "Run with --check; the load-time self-test finds lost updates.",
    ),
    Symptom(
        "run",
        "EZ2001 with 507015 or 507035",
        "a kernel read or wrote out of range: page ids, positions",
        "Run with --check; treat the device as lost and restart the process.",
    ),
    Symptom(
        "run",
        "EL0004",
        "device memory is used up",
        "Lower the number of pages or the batch, close the card's other users.",
    ),
    Symptom(
        "run",
        "EH0010 / EE1013 / 0x7020010",
        "host memory is used up",
        "Free host memory or huge pages.",
    ),
    Symptom(
        "run",
        "EE1002",
        "the stream did not finish in time",
        "Raise the limit only if the step is known to be that long; a 310B may need a reboot.",
    ),
    Symptom(
        "run",
        "EE1010",
        "a stream or a model was used in another context or on another device",
        "Use them through the Device that made them.",
    ),
    Symptom(
        "cluster",
        "EI0006",
        "another rank is late or gone, or a port is blocked",
        "Look at the other ranks first; HCCL_CONNECT_TIMEOUT must be the same on all.",
    ),
    Symptom(
        "cluster",
        "EI0002, or 507048",
        "a collective waited in vain for another rank",
        "Look at the other ranks first; see HCCL_EXEC_TIMEOUT.",
    ),
)
