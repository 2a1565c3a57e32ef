"""From ATC's output to one clear error: codes with cause and advice, nodes, killed workers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from .atc_codes import code_row

# `Invalid_Argument(E10001): text` (new) or `E10001: [PID: 1] 2026-01-01-00:00:00.000 text` (old).
_CODE = re.compile(r"(?:\b[A-Z]\w*\()?\b(E(?:[0-9]{5}|[A-Z][0-9]{4}))\)?\s*:\s*(.*)")
_STAMP = re.compile(r"^(?:\[PID:\s*\d+\]\s*)?(?:\d{4}-\d\d-\d\d[-\d:.]*\s*)?")
_SUGGESTION = re.compile(r"\s*(?:Possible Cause|Solution|TraceBack)\b.*")
_LOG_LINE = re.compile(r"^\[(?:ERROR|WARNING|INFO|DEBUG|EVENT)\]")
_UNKNOWN_FLAG = re.compile(r"unknown command line flag '([^']+)'")
_MISSING_MODULE = re.compile(r"No module named '([^']+)'")
_MISSING_LIBRARY = re.compile(r"(lib\S+\.so[.\d]*): cannot open shared object file")
KILLED = (
    re.compile(r"\bBrokenPipeError\b|\bBroken pipe\b", re.IGNORECASE),
    re.compile(r"\bKilled\b|\bSIGKILL\b|\bsignal 9\b|exit ?code:? -9\b", re.IGNORECASE),
    re.compile(r"main process disappeared|Subprocess\[\w*\] raise error", re.IGNORECASE),
)
# One line of our parser plugin for each node that it refuses (graph_ops/ascend/log.cc).
_PLUGIN_LINE = re.compile(r"\[pagedom-plugin\] ERROR (?P<text>node '(?P<node>[^']*)'.*)")
_SIGKILL_RETURNS = (-9, 137)
_SHOWN_OF_A_CODE = 6


@dataclass(frozen=True)
class AtcFinding:
    """One complaint of ATC: its message as printed, and what the code's row says."""

    code: str  # "" for a signature without a code
    message: str
    meaning: str
    advice: str
    node: str | None = None  # the ONNX node the message names, with its type

    def __str__(self) -> str:
        return "\n".join(_group_lines([self]))


def _group_lines(findings: Sequence[AtcFinding]) -> Iterator[str]:
    """Yield the messages of one code, then once what it means."""
    for finding in findings[:_SHOWN_OF_A_CODE]:
        yield f"{finding.code} {finding.message}".strip()
        if finding.node:
            yield f"  node: {finding.node}"
    if len(findings) > _SHOWN_OF_A_CODE:
        yield f"... and {len(findings) - _SHOWN_OF_A_CODE} more of {findings[0].code}"
    yield f"  means: {findings[0].meaning}"
    yield f"  to do: {findings[0].advice}"


class AtcError(RuntimeError):
    """A conversion failed; `findings` has the causes, `log` the full output."""

    def __init__(
        self,
        summary: str,
        findings: Iterable[AtcFinding] = (),
        log: Path | None = None,
        returncode: int | None = None,
    ) -> None:
        self.findings = tuple(findings)
        self.log = log
        self.returncode = returncode
        lines = [summary]
        for _, group in groupby(self.findings, lambda found: (found.code, found.meaning)):
            lines += _group_lines(list(group))
        if log is not None:
            lines.append(f"full output: {log}")
        super().__init__("\n".join(lines))


@dataclass(frozen=True)
class Circumstances:
    """What was seen beside the output of a failed run."""

    returncode: int
    jobs: int | None = None
    least_available_bytes: int | None = None  # lowest free memory seen while it ran
    oom_kills: int = 0  # processes the kernel killed meanwhile


def find_causes(
    lines: Sequence[str], seen: Circumstances, nodes: Mapping[str, str] | None = None
) -> tuple[AtcFinding, ...]:
    """Return the causes in ATC's output, the most telling first.

    Args:
        lines: the output, in order.
        seen: exit status and memory.
        nodes: operator type of each ONNX node by name, to map messages back.
    """
    findings = [
        *_plugin_refusals(lines, nodes or {}),
        *_signatures(lines, seen),
        *_coded(lines, nodes or {}),
    ]
    if not findings:
        findings.append(
            AtcFinding(
                "",
                _last_words(lines),
                "ATC gave no error code",
                "Read the end of the full output; run again with --log debug for more.",
            )
        )
    unique = dict.fromkeys(findings)
    # E19999 mostly repeats that something failed: the codes beside it say what.
    return tuple(sorted(unique, key=lambda finding: finding.code == "E19999"))


def _plugin_refusals(lines: Sequence[str], nodes: Mapping[str, str]) -> Iterable[AtcFinding]:
    """Yield what our parser plugin said; ATC itself reports no more than E19999 of it."""
    for line in lines:
        found = _PLUGIN_LINE.search(line)
        if found is None:
            continue
        name = found["node"]
        yield AtcFinding(
            "",
            found["text"].strip(),
            "pagedom's parser plugin refuses the node",
            "If the message names an operator that CANN lacks, install a newer CANN or compile "
            "with --cache-write rows; otherwise build the plugin of this pagedom "
            "(compile-model --build-plugin).",
            f"{name} ({nodes[name]})" if name in nodes else None,
        )


def _coded(lines: Sequence[str], nodes: Mapping[str, str]) -> Iterable[AtcFinding]:
    for index, line in enumerate(lines):
        is_log = _LOG_LINE.match(line) or _PLUGIN_LINE.search(line)
        found = None if is_log else _CODE.search(line)
        if found is None:
            continue
        code = found[1]
        message = _message(found[2], lines[index + 1 : index + 6])
        row = code_row(code)
        yield AtcFinding(code, message, row.meaning, row.advice, named_node(message, nodes))


def _message(first: str, following: Sequence[str]) -> str:
    """Return the message as printed, without time stamp, suggestions and trace."""
    parts = [_STAMP.sub("", first.strip())]
    for line in following:
        ends = not line.strip() or _SUGGESTION.match(line) or _CODE.search(line)
        if ends or not line[:1].isspace():
            break
        parts.append(line.strip())
    text = " ".join(part for part in parts if part)
    cut = re.search(r"\s+(?:Possible Cause|Solution):", text)
    return text[: cut.start()] if cut else text


def named_node(message: str, nodes: Mapping[str, str]) -> str | None:
    """Return "name (type)" of the ONNX node a message names; the longest name wins."""
    found = [
        name
        for name in nodes
        if name in message and re.search(rf"(?<![\w./]){re.escape(name)}(?![\w/]|\.\d)", message)
    ]
    if not found:
        return None
    name = max(found, key=len)
    return f"{name} ({nodes[name]})"


def _signatures(lines: Sequence[str], seen: Circumstances) -> Iterable[AtcFinding]:
    """Yield causes that come without a code."""
    killed = [line.strip() for line in lines if any(p.search(line) for p in KILLED)]
    if killed or seen.oom_kills or seen.returncode in _SIGKILL_RETURNS:
        yield _killed_finding(killed, seen)
    for line in lines:
        flag = _UNKNOWN_FLAG.search(line)
        if flag:
            yield AtcFinding(
                "",
                line.strip(),
                f"this CANN's atc does not know the option --{flag[1]}",
                "Install a newer CANN, or drop the option.",
            )
        module = _MISSING_MODULE.search(line)
        if module:
            yield AtcFinding(
                "",
                line.strip(),
                f"the python that ATC uses has no module {module[1]!r}",
                "Source CANN's set_env.sh, and install the module for the python that is first on "
                "PATH.",
            )
        library = _MISSING_LIBRARY.search(line)
        if library:
            yield AtcFinding(
                "",
                line.strip(),
                f"the library {library[1]} is not on LD_LIBRARY_PATH of this process",
                "Source CANN's set_env.sh in the process (service, sudo, container) that compiles; "
                "on a host without a card add <cann>/<arch>-linux/devlib.",
            )


def _killed_finding(lines: Sequence[str], seen: Circumstances) -> AtcFinding:
    words = ["a compile process of ATC was killed from outside, mostly for want of memory"]
    if seen.least_available_bytes is not None:
        words.append(f"{seen.least_available_bytes / 1024**3:.1f} GiB of memory was free at least")
    if seen.oom_kills:
        words.append(f"the kernel killed {seen.oom_kills} process(es) for memory meanwhile")
    used = f" (now {seen.jobs})" if seen.jobs is not None else ""
    return AtcFinding(
        "",
        lines[0] if lines else f"exit status {seen.returncode}",
        "; ".join(words),
        f"Use fewer compile processes: --compile-jobs 1{used}; close other programs, or add swap.",
    )


def _last_words(lines: Sequence[str]) -> str:
    spoken = [line.strip() for line in lines if line.strip(" .")]
    return spoken[-1] if spoken else "(no output)"
