"""docs/troubleshooting.md, generated from the tables that the program itself prints from.

python tools/troubleshooting.py            write the page
python tools/troubleshooting.py --check    fail if the page is not what the tables say
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from pagedom.compiler.atc_codes import ATC_CODES
from pagedom.runtime.acl.error_table import ERRORS
from pagedom.runtime.symptoms import SYMPTOMS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "troubleshooting.md"
PHASES = {
    "install": "Installation and environment",
    "compile": "Compiling with ATC",
    "load": "Loading an OM",
    "run": "Running",
    "cluster": "Several cards",
}
FAMILIES = (
    ("E1", "ATC: E1xxxx, graph engine"),
    ("E2", "ATC: E2xxxx, fusion engine"),
    ("E4", "ATC: E4xxxx, kernel compiler"),
    ("E7", "ATC: E7xxxx and E8xxxx, operators"),
    ("EZ", "ATC: EZxxxx, operators"),
)
HEAD = """# Troubleshooting

Search this page for the code or the message you see. `run-om doctor` checks most of the causes;
`compile-model` and `run-om` print the same texts beside the code. Generated from the program's own
tables by `tools/troubleshooting.py`; do not edit.

Nothing here was reproduced on an Ascend device: meanings come from CANN's sources and pages, cures
from vendors' pages and from issues of public projects.
"""


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for phase, title in PHASES.items():
        rows = [(f"`{s.signature}`", s.cause, s.cure) for s in SYMPTOMS if s.phase == phase]
        parts.append(section(title, "Message", rows))
    for start, title in FAMILIES:
        starts = (start, "E8") if start == "E7" else (start,)
        rows = [
            (code, row.meaning, row.advice)
            for code, row in sorted(ATC_CODES.items())
            if code.startswith(starts)
        ]
        parts.append(section(title, "Code", rows))
    acl = [(str(code), row.meaning, row.hint) for code, row in sorted(ERRORS.items())]
    parts.append(section("ACL: return codes of pyACL", "Code", acl))
    return "\n".join(parts)


def section(title: str, key: str, rows: Iterable[tuple[str, str, str]]) -> str:
    """Return one table."""
    lines = [f"## {title}", "", f"| {key} | Cause | What to do |", "|---|---|---|"]
    lines += ["| " + " | ".join(cell(text) for text in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Return a text that is safe inside a table's cell."""
    return text.replace("|", "\\|") or "(the detail text says)"


def main() -> int:
    """Write the page or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page()
        print("docs/troubleshooting.md: " + ("as the tables" if same else "differs: write it"))
        return 0 if same else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
