"""One page about this machine: does what a model needs fit what is here?

Nothing is changed and nothing is loaded into this process: CANN's libraries are tried in a child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .doctor_acl import probe_acl
from .doctor_artifact import Found, look_at_artifact
from .doctor_cann import look_at_cann
from .doctor_findings import NOTE, OK, PROBLEM, WARNING, Finding, Surroundings
from .doctor_machine import look_at_machine

__all__ = ["NOTE", "OK", "PROBLEM", "WARNING", "Finding", "Page", "Surroundings", "examine"]


@dataclass(frozen=True)
class Page:
    """All findings, by section, in the order of the page."""

    sections: tuple[tuple[str, tuple[Finding, ...]], ...]

    @property
    def findings(self) -> list[Finding]:
        """Every finding."""
        return [finding for _, section in self.sections for finding in section]

    @property
    def blocked(self) -> bool:
        """Whether something must be repaired first."""
        return any(finding.status == PROBLEM for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "blocked": self.blocked,
            "sections": {
                title: [vars(finding) for finding in section] for title, section in self.sections
            },
        }


def examine(here: Surroundings, artefacts: Sequence[Path] = ()) -> Page:
    """Look at CANN, devices, python, memory and variables, and at artefacts against them."""
    cann = look_at_cann(here)
    acl = probe_acl(here, has_cann=cann.root is not None)
    machine = look_at_machine(here)
    names = [finding for finding in machine.findings if finding.topic.startswith("$")]
    others = [finding for finding in machine.findings if not finding.topic.startswith("$")]
    sections = [
        ("Ascend", (*cann.findings, *acl.findings)),
        ("This machine", tuple(others)),
        ("Environment variables in force", tuple(names)),
    ]
    found = Found(cann, acl, machine)
    for folder in artefacts:
        sections.append((f"Artefact {folder}", tuple(look_at_artifact(folder, found))))
    return Page(tuple((title, findings) for title, findings in sections if findings))
