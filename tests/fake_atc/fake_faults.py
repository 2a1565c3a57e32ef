"""What can go wrong on a machine, by environment variable: see README.md."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from fake_arguments import RefusalError, say


def before() -> None:
    """Count the conversion, then fail or wait as asked, before any work."""
    env = os.environ
    if count := env.get("FAKE_ATC_COUNT"):
        with open(count, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} jobs={env.get('TE_PARALLEL_COMPILER', '')}\n")
    if "FAKE_ATC_DUMP_ENV" in env:
        lines = "\n".join(f"{name}={value}" for name, value in env.items())
        Path(env["FAKE_ATC_DUMP_ENV"]).write_text(f"{lines}\nCWD={os.getcwd()}\n", encoding="utf-8")
    if text := env.get("FAKE_ATC_STDERR"):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    if "FAKE_ATC_KILL_CHILD" in env:
        _killed_worker()
    if "FAKE_ATC_HANG" in env:
        _hang(Path(env["FAKE_ATC_HANG"]))
    if seconds := env.get("FAKE_ATC_SLOW"):
        _be_slow(float(seconds))
    if code := env.get("FAKE_ATC_CODE"):
        code, _, message = code.partition("|")
        raise RefusalError(code, message)
    if "FAKE_ATC_KILL_SELF" in env:
        os.kill(os.getpid(), signal.SIGKILL)
    if "FAKE_ATC_LEAVE_WORKER" in env:
        worker = _worker(inherit=True)
        Path(env["FAKE_ATC_LEAVE_WORKER"]).write_text(str(worker.pid))


def _worker(inherit: bool) -> subprocess.Popen[bytes]:
    code = "import time\nwhile True: time.sleep(0.2)"
    return subprocess.Popen([sys.executable, "-c", code], stdout=None if inherit else -3)


def _killed_worker() -> None:
    """A compile process dies by SIGKILL, as under the OOM killer; the parent notices a pipe."""
    worker = _worker(inherit=False)
    os.kill(worker.pid, signal.SIGKILL)
    status = worker.wait()
    say(f"[ERROR] TBE(1,te_fusion): compile process exit code: {status}")
    say("BrokenPipeError: [Errno 32] Broken pipe")
    raise RefusalError("E22001", "Compilation result for operator MatMul not found.")


def _hang(pids: Path) -> None:
    """Wait for ever with a worker, half an .om already written, deaf to a polite request."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output = next(word for word in sys.argv if word.startswith("--output=")).partition("=")[2]
    Path(output + ".om").write_bytes(b"IMOD half")
    worker = _worker(inherit=True)
    pids.write_text(f"{os.getpid()} {worker.pid}")
    say("compiling kernels ...")
    while True:
        time.sleep(0.2)


def _be_slow(seconds: float) -> None:
    """Print progress without line ends now and then, as the kernel compiler does."""
    for _ in range(4):
        say(".", end="")
        time.sleep(seconds / 4)
    say("")
