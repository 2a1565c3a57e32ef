"""Artefacts that this layer compiles once a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@dataclass(frozen=True)
class ToyModel:
    """A random checkpoint with a tokenizer, its weights and its configuration."""

    folder: Path
    values: dict[str, Any]
    arrays: dict[str, np.ndarray]


@pytest.fixture(scope="session")
def compile_to(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that compiles a model with given options, once a combination."""
    from pagedom.compiler.pipeline import compile_model
    from pagedom.compiler.request import CompileOptions, resolve
    from pagedom.compiler.stages import Stages
    from pagedom.models.checkpoint import open_checkpoint

    done: dict[Any, Path] = {}

    def compile_once(model: Path, **options: Any) -> Path:
        key = (model, *sorted(options.items()))
        if key not in done:
            output = tmp_path_factory.mktemp("artefact") / "model"
            with open_checkpoint(model) as checkpoint:
                request = resolve(CompileOptions(str(model), output, **options), checkpoint)
                compile_model(request, checkpoint, Stages(), "test")
            done[key] = output
        return done[key]

    return compile_once


@pytest.fixture(scope="session")
def stories(shared_data: Path) -> Path:
    """Return the tiny trained model's folder."""
    return shared_data / "stories260K"


@pytest.fixture(scope="session")
def toy_model(toy: Any, tmp_path_factory: pytest.TempPathFactory) -> ToyModel:
    """Return a random llama of 48 tokens with a word-per-token tokenizer."""
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    values = toy.config(hidden_size=256, num_attention_heads=4, num_key_value_heads=2)
    arrays = toy.tensors(values)
    folder = toy.write_folder(tmp_path_factory.mktemp("toy"), values, arrays)
    words = {f"w{number}": number for number in range(values["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return ToyModel(folder, values, arrays)
