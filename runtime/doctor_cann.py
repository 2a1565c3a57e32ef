"""CANN, driver, cards and our parser plugin, from files and variables alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .acl.error_table import row
from .cann_version import HOME_VARIABLES, read_version
from .doctor_findings import NOTE, OK, PROBLEM, WARNING, Finding, Surroundings
from .npu_smi import parse_npu_smi
from .visible_devices import HOW_TO_LIST, read_card_list
from .visible_devices import VARIABLE as VISIBLE_DEVICES

PLUGIN_VARIABLE = "ASCEND_CUSTOM_OPP_PATH"
PLUGIN_MANIFEST = "pagedom_plugin.json"
DRIVER_VERSION = "/usr/local/Ascend/driver/version.info"

_USUAL_PLACES = ("/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann")
_SOURCE = "source {root}/set_env.sh in the shell, service or container that runs pagedom"
_NO_NODES = row(207004).hint
_VERSION_LINE = re.compile(r"^\s*(?:Version|version|package_version)\s*=\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class CannState:
    """What the files say: release "" where unknown; has_driver: a card may be in this machine."""

    root: Path | None
    release: str
    has_driver: bool
    cards: tuple[str, ...]
    findings: tuple[Finding, ...]


def look_at_cann(here: Surroundings) -> CannState:
    """Return everything that can be known without loading a library of CANN."""
    root, found_by = _find_root(here)
    release = read_version(root) if root is not None and root.is_dir() else ""
    driver = list(_driver(here))
    has_driver = any(each.status != NOTE for each in driver)
    cards, card_findings = _cards(here, has_driver)
    findings = [
        *_cann(here, root, found_by, release),
        *driver,
        *card_findings,
        *_visible_devices(here),
        *_libraries(here, has_driver),
        *_plugins(here, release),
    ]
    usable = root if found_by in HOME_VARIABLES and root is not None and root.is_dir() else None
    return CannState(usable, release, has_driver, tuple(cards), tuple(findings))


def _find_root(here: Surroundings) -> tuple[Path | None, str]:
    for name in HOME_VARIABLES:
        if here.environ.get(name):
            return Path(here.environ[name]), name
    for place in _USUAL_PLACES:
        if here.path(place).is_dir():
            return here.path(place), "usual place"
    return None, ""


def _cann(here: Surroundings, root: Path | None, found_by: str, release: str) -> Iterator[Finding]:
    if root is None:
        yield Finding("CANN", NOTE, "not installed: needed only for Ascend chips")
    elif not root.is_dir():
        yield Finding(
            "CANN",
            PROBLEM,
            f"{found_by}={root}, which is no folder",
            "Source the set_env.sh of the CANN that is installed, or unset the variable.",
        )
    elif found_by not in HOME_VARIABLES:
        advice = _SOURCE.format(root=root)
        yield Finding(
            "CANN",
            WARNING,
            f"{release or 'an unknown release'} lies in {root}, but its environment is not set",
            advice[0].upper() + advice[1:] + ".",
        )
    elif not release:
        yield Finding(
            "CANN",
            WARNING,
            f"{root} ({found_by}) does not state its release in any version file",
            "Is the installation complete? compile-model then takes it for a new one.",
        )
    else:
        yield Finding("CANN", OK, f"{release} in {root} ({found_by})")


def _driver(here: Surroundings) -> Iterator[Finding]:
    match = _VERSION_LINE.search(here.read(DRIVER_VERSION))
    if match:
        yield Finding("driver", OK, f"{match[1]} ({DRIVER_VERSION})")
    elif here.path(DRIVER_VERSION).parent.is_dir():
        yield Finding(
            "driver",
            WARNING,
            f"its folder is there, but {DRIVER_VERSION} states no version",
            "In a container map the whole folder /usr/local/Ascend/driver.",
        )
    else:
        yield Finding("driver", NOTE, "not installed: needed only where a card is")


def _cards(here: Surroundings, has_driver: bool) -> tuple[list[str], list[Finding]]:
    findings = list(_device_nodes(here, has_driver))
    if here.which("npu-smi") is None:
        if has_driver:
            findings.append(
                Finding(
                    "npu-smi",
                    WARNING,
                    "not on PATH, though a driver is installed",
                    "In a container map it from the host: it names cards and their state.",
                )
            )
        return [], findings
    ran = here.run([str(here.which("npu-smi")), "info"])
    if ran is None or ran.code:
        how = "did not end" if ran is None else f"exit code {ran.code}: {ran.text.strip()[:200]}"
        advice = "Driver and firmware do not work together: look at dmesg, restart, reinstall."
        return [], [*findings, Finding("npu-smi", PROBLEM, how, advice)]
    cards = parse_npu_smi(ran.text)
    if not cards:
        findings.append(Finding("npu-smi", PROBLEM, "it lists no card", _NO_NODES))
    for card in cards:
        ill = card.health.lower() not in ("", "ok")
        findings.append(
            Finding(
                f"card {card.npu_id}",
                WARNING if ill else OK,
                f"{card.name}, health {card.health or 'unknown'} (npu-smi)",
                "npu-smi info -t health -i ID shows why." if ill else "",
            )
        )
    return [card.name for card in cards], findings


def _device_nodes(here: Surroundings, has_driver: bool) -> Iterator[Finding]:
    nodes = sorted(here.path("/dev").glob("davinci[0-9]*"))
    if not nodes:
        if has_driver:
            yield Finding("device nodes", PROBLEM, "there is no /dev/davinciN", _NO_NODES)
        return
    closed = [node.name for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    if closed:
        seen = f"no right to open {', '.join(closed)}"
        yield Finding("device nodes", PROBLEM, seen, row(207006).hint)
    else:
        yield Finding("device nodes", OK, ", ".join(node.name for node in nodes))


def _visible_devices(here: Surroundings) -> Iterator[Finding]:
    text = here.environ.get(VISIBLE_DEVICES)
    if text is None:
        return
    listed = read_card_list(text)
    nodes = {node.name.removeprefix("davinci") for node in here.path("/dev").glob("davinci[0-9]*")}
    absent = [card for card in listed.cards if nodes and str(card) not in nodes]
    problems = [
        *([f"it {listed.error}"] if listed.error else []),
        *([f"what begins with {listed.unread!r} is not read"] if listed.unread else []),
        *(f"there is no /dev/davinci{card}, and the list ends there" for card in absent[:1]),
    ]
    if problems:
        yield Finding(
            VISIBLE_DEVICES,
            PROBLEM,
            f"{text!r}: {'; '.join(problems)}",
            f"{HOW_TO_LIST} (EE2002, 107001). Programs then count devices from 0 again.",
        )
    else:
        seen = f"{text}: these devices only, counted from 0 again inside the program"
        yield Finding(VISIBLE_DEVICES, OK, seen)


def _libraries(here: Surroundings, has_driver: bool) -> Iterator[Finding]:
    """Two releases on one path, and stubs that hide the real libraries (100039)."""
    entries = here.paths("LD_LIBRARY_PATH")
    stubs = [entry for entry in entries if "devlib" in Path(entry).parts]
    if stubs and has_driver:
        yield Finding("libraries", PROBLEM, f"LD_LIBRARY_PATH has {stubs[0]}", row(100039).hint)
    roots = {root for entry in entries if (root := _root_of(entry)) is not None}
    releases = {str(root): read_version(root) for root in sorted(roots)}
    if len(set(releases.values())) > 1:
        listed = ", ".join(f"{place} ({release})" for place, release in releases.items())
        yield Finding(
            "libraries",
            PROBLEM,
            f"LD_LIBRARY_PATH mixes releases of CANN: {listed}",
            "Keep one: start from a fresh shell and source one set_env.sh (undefined symbols "
            "and crashes come from this).",
        )


def _root_of(entry: str) -> Path | None:
    """The CANN folder that a library path lies in, or None; links resolved."""
    path = Path(entry)
    for folder in (path, *path.parents):
        if (folder / "version.cfg").is_file() or (folder / "set_env.sh").is_file():
            return folder.resolve()
    return None


def _plugins(here: Surroundings, release: str) -> Iterator[Finding]:
    ours = [Path(part) for part in here.paths(PLUGIN_VARIABLE)]
    ours = [folder for folder in ours if (folder / PLUGIN_MANIFEST).exists()]
    if not ours:
        yield Finding(
            "parser plugin",
            NOTE,
            f"none in {PLUGIN_VARIABLE}: only ATC needs it, and compile-model builds it",
        )
    for folder in ours:
        yield _plugin(folder, release)


def _plugin(folder: Path, release: str) -> Finding:
    rebuild = "Build it again: compile-model --build-plugin."
    try:
        data: Any = json.loads((folder / PLUGIN_MANIFEST).read_text(encoding="utf-8"))
        built, operators = str(data["cann_version"]), len(data["operators"])
        version = str(data["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        seen = f"{folder / PLUGIN_MANIFEST} cannot be read: {error}"
        return Finding("parser plugin", WARNING, seen, rebuild)
    if not any((folder / "framework").rglob("*.so")):
        return Finding("parser plugin", WARNING, f"{folder} has no library", rebuild)
    seen = f"{version}, {operators} operators, for CANN {built or 'unknown'}, in {folder}"
    if built and release and built != release:
        return Finding("parser plugin", WARNING, f"{seen}; this CANN is {release}", rebuild)
    return Finding("parser plugin", OK, seen)
