"""The error of a command line that is wrong by itself, whatever the model and the machine are."""

from __future__ import annotations


class OptionError(ValueError):
    """Options that are malformed or contradict each other; the commands exit with 2."""
