"""`run-om doctor`: one page about this machine, to read and to paste into a report."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ..doctor import NOTE, OK, PROBLEM, WARNING, Finding, Page, Surroundings, examine

_COLOURS = {OK: "green", NOTE: "bright_black", WARNING: "yellow", PROBLEM: "red"}
_EPILOG = """\b
ok       as it should be
note     absent, and that is fine
warning  works, or may not matter to you
problem  blocks; the line below says what to do

\b
Exit code 0: nothing blocks. 1: a problem was found.
"""


@click.command(short_help="Check this machine and an artefact.", epilog=_EPILOG)
@click.argument("artefact", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def doctor(artefact: Path | None, as_json: bool) -> int:
    """Check CANN, driver, devices, python and memory, and what ARTEFACT needs of them."""
    page = examine(Surroundings(), [] if artefact is None else [artefact])
    if as_json:
        click.echo(json.dumps(page.to_json(), indent=2))
    else:
        click.echo(_text(page))
    return 1 if page.blocked else 0


def _text(page: Page) -> str:
    width = max(len(finding.topic) for finding in page.findings)
    lines = []
    for title, findings in page.sections:
        lines.append(click.style(title, bold=True))
        lines += [_line(finding, width) for finding in findings]
        lines.append("")
    count = sum(finding.status == PROBLEM for finding in page.findings)
    lines.append("Nothing blocks." if not count else f"{count} problem(s): see the arrows above.")
    return "\n".join(lines)


def _line(finding: Finding, width: int) -> str:
    status = click.style(f"{finding.status:<8}", fg=_COLOURS[finding.status])
    text = f"{status} {finding.topic:<{width}}  {finding.seen}"
    return f"{text}\n{'':9}{'':{width}}  -> {finding.advice}" if finding.advice else text
