"""The one exception of this package: a file that is not a model we can read."""

from __future__ import annotations

from pathlib import Path


class OmFormatError(ValueError):
    """A file or a message in it breaks the OM format; says where, and declared versus actual."""

    def __init__(
        self,
        problem: str,
        *,
        path: str | Path | None = None,
        offset: int | None = None,
        declared: object = None,
        actual: object = None,
        hint: str = "",
    ) -> None:
        self.problem = problem
        self.path = path
        self.offset = offset  # bytes from the start of the file
        self.declared = declared
        self.actual = actual
        self.hint = hint
        super().__init__(self._text())

    def _text(self) -> str:
        parts = [f"{self.path}: " if self.path is not None else "", self.problem]
        if self.offset is not None:
            parts.append(f" at byte {self.offset}")
        if self.declared is not None or self.actual is not None:
            parts.append(f": declared {self.declared}, actual {self.actual}")
        if self.hint:
            parts.append(f". {self.hint}")
        return "".join(parts)

    def with_path(self, path: str | Path) -> OmFormatError:
        """Return the same error naming the file."""
        return OmFormatError(
            self.problem,
            path=path,
            offset=self.offset,
            declared=self.declared,
            actual=self.actual,
            hint=self.hint,
        )
