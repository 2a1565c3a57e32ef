"""Code blocks of a markdown page, run in order as one program.

A ```python block that prints is followed by a ```text block with exactly what it prints; a page's
blocks share their names. `python tests/doc_blocks.py PAGE` writes the outputs anew.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A ```python block and the ```text block that follows it, if one does."""

    page: str
    line: int
    code: str
    output: str
    end: int  # where the code's fence ends in the page's text
    output_end: int  # where the output's fence ends; `end` where there is none

    def run(self, names: dict[str, Any]) -> str:
        """Execute the code in `names` and return what it printed."""
        printed = io.StringIO()
        # Empty lines in front, so that a traceback shows the page's own line numbers.
        program = compile("\n" * self.line + self.code, self.page, "exec")
        with contextlib.redirect_stdout(printed):
            exec(program, names)
        # Editors and linters remove blanks at the end of a line.
        return "".join(line.rstrip() + "\n" for line in printed.getvalue().splitlines())


def blocks_of(path: Path) -> list[Block]:
    """Return the python blocks of a page in order."""
    text = path.read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    found = []
    for i, fence in enumerate(fences):
        if fence["kind"] != "python":
            continue
        after = fences[i + 1] if i + 1 < len(fences) else None
        follows = after is not None and after["kind"] == "text"
        follows = follows and not text[fence.end() : after.start()].strip()  # type: ignore[union-attr]
        line = text.count("\n", 0, fence.start()) + 1
        output, end = (after["body"], after.end()) if after and follows else ("", fence.end())
        found.append(Block(path.name, line, fence["body"], output, fence.end(), end))
    return found


def with_fresh_outputs(path: Path) -> str:
    """Return the page's text with every output block as the code prints it now."""
    text = path.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    pieces, at = [], 0
    for block in blocks_of(path):
        printed = block.run(names)
        pieces.append(text[at : block.end])
        pieces.append(f"\n\n```text\n{printed}```" if printed else "")
        at = block.output_end
    return "".join(pieces) + text[at:]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(with_fresh_outputs(page), encoding="utf-8")
