"""What can be wrong with a model: one exception a stage, all under `ModelError`."""

from __future__ import annotations


class ModelError(Exception):
    """A checkpoint cannot be used; the text says what was given, what is allowed, what to do."""


class ConfigError(ModelError):
    """A configuration key is missing, impossible, or means mathematics that is not supported."""


class WeightError(ModelError):
    """A weight file is damaged, incomplete, or does not fit the configuration."""


class TokenizerError(ModelError):
    """The tokenizer data of a checkpoint is missing or of a kind that is not supported."""


class CatalogError(ModelError):
    """A model name is unknown, or a built-in demo could not be fetched."""
