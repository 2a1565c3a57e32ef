"""Where a checkpoint keeps its tokenizer, and how it gets into an artefact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from .config import ModelConfig
from .errors import TokenizerError

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


class TokenizerData(Protocol):
    """The tokenizer side of a checkpoint."""

    @property
    def chat_template(self) -> str | None:
        """Return the Jinja source of the default chat template, or None."""
        ...

    def write(self, folder: Path, config: ModelConfig) -> tuple[list[Path], list[str]]:
        """Write the tokenizer files; return their paths and warnings."""
        ...


class HfTokenizerData:
    """Tokenizer files of a Hugging Face folder: tokenizer.json is copied byte for byte."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def chat_template(self) -> str | None:
        """Return chat_template.jinja, else the key of tokenizer_config.json, else None."""
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        for name in (TOKENIZER_CONFIG, "chat_template.json"):
            template = _default_template(self._json(name).get("chat_template"))
            if template is not None:
                return template
        return None

    def write(self, folder: Path, config: ModelConfig) -> tuple[list[Path], list[str]]:
        """Copy tokenizer.json and write the few keys of tokenizer_config.json that are needed."""
        source = self._folder / TOKENIZER
        if not source.is_file():
            raise TokenizerError(self._advice())
        content = source.read_bytes()
        tokenizer = _parse(source, content)
        own = self._json(TOKENIZER_CONFIG)
        names = _names_by_id(tokenizer)
        values: dict[str, Any] = {
            "bos_token": _token_text(own.get("bos_token")) or names.get(_or_minus(config.bos_id)),
            "eos_token": _token_text(own.get("eos_token")) or _first(names, config.eos_ids),
            "add_bos_token": _adds_bos(own, content, config.bos_id),
        }
        target = folder / TOKENIZER
        target.write_bytes(content)
        return [target, write_config(folder, values)], _vocabulary_warnings(names, config)

    def _json(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        if not path.is_file():
            return {}
        values = _parse(path, path.read_bytes())
        return values

    def _advice(self) -> str:
        if (self._folder / "tokenizer.model").is_file():
            return (
                f"{self._folder}: has tokenizer.model only; tokenizer.json is needed. Make it "
                "once: transformers' AutoTokenizer.from_pretrained(folder, use_fast=True)"
                ".save_pretrained(folder)"
            )
        if (self._folder / "vocab.json").is_file():
            return (
                f"{self._folder}: has vocab.json without tokenizer.json; make it once with "
                "transformers' AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        return f"{self._folder}: has no tokenizer.json; fetch it with the checkpoint"


class GgufTokenizerData:
    """Tokenizer of a GGUF file: rebuilt from its metadata."""

    def __init__(self, path: Path, metadata: Mapping[str, Any]) -> None:
        self._path = path
        self._metadata = metadata

    @property
    def chat_template(self) -> str | None:
        """Return metadata key tokenizer.chat_template, or None."""
        template = self._metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def write(self, folder: Path, config: ModelConfig) -> tuple[list[Path], list[str]]:
        """Write the rebuilt tokenizer.json and its tokenizer_config.json."""
        from .gguf_tokenizer import GgufVocabulary, build_tokenizer

        try:
            vocabulary = GgufVocabulary.from_metadata(self._metadata)
            tokenizer = build_tokenizer(vocabulary)
        except TokenizerError as problem:
            raise TokenizerError(f"{self._path}: {problem}") from problem
        target = folder / TOKENIZER
        target.write_text(tokenizer.to_str(), encoding="utf-8")
        values = {
            "bos_token": vocabulary.text(vocabulary.bos_id),
            "eos_token": vocabulary.text(vocabulary.eos_id),
            "add_bos_token": vocabulary.add_bos,
        }
        return [target, write_config(folder, values)], []


def write_config(folder: Path, values: Mapping[str, Any]) -> Path:
    """Write tokenizer_config.json with sorted keys; nulls are kept, they say "none"."""
    path = folder / TOKENIZER_CONFIG
    text = json.dumps(values, ensure_ascii=False, indent=1, sort_keys=True)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise TokenizerError(f"{path}: is not readable JSON ({problem})") from problem
    if not isinstance(values, dict):
        raise TokenizerError(f"{path}: holds {type(values).__name__}, an object is due")
    return values


def _default_template(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # several templates by name
        named = {v.get("name"): v.get("template") for v in value if isinstance(v, dict)}
        template = named.get("default")
        return template if isinstance(template, str) else None
    return None


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):  # an AddedToken written out
        value = value.get("content")
    return value if isinstance(value, str) else None


def _names_by_id(tokenizer: Mapping[str, Any]) -> dict[int, str]:
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    names: dict[int, str] = {}
    if isinstance(vocabulary, dict):
        names = {i: text for text, i in vocabulary.items() if isinstance(i, int)}
    elif isinstance(vocabulary, list):  # Unigram: [text, score] in id order
        names = {i: str(row[0]) for i, row in enumerate(vocabulary) if isinstance(row, list)}
    for token in tokenizer.get("added_tokens") or []:
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            names[token["id"]] = str(token.get("content"))
    return names


def _or_minus(token: int | None) -> int:
    return -1 if token is None else token


def _first(names: Mapping[int, str], ids: tuple[int, ...]) -> str | None:
    return next((names[i] for i in ids if i in names), None)


def _adds_bos(own: Mapping[str, Any], content: bytes, bos_id: int | None) -> bool:
    if isinstance(own.get("add_bos_token"), bool):
        return bool(own["add_bos_token"])
    if bos_id is None:
        return False
    from tokenizers import Tokenizer  # the post-processor is the only other place that says it

    try:
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
    except Exception as problem:  # the library raises plain Exception
        raise TokenizerError(f"{TOKENIZER}: is not a tokenizer ({problem})") from problem
    return bos_id in tokenizer.encode("", add_special_tokens=True).ids


def _vocabulary_warnings(names: Mapping[int, str], config: ModelConfig) -> list[str]:
    beyond = sorted(i for i in names if i >= config.vocab_size)
    if not beyond:
        return []
    return [
        f"tokenizer.json: {len(beyond)} tokens from id {beyond[0]} ({names[beyond[0]]!r}) on lie "
        f"beyond the model's vocabulary of {config.vocab_size}; a text that holds one is refused"
    ]
