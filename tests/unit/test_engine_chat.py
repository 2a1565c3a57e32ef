"""Engine.chat and its kin, on the closed-form model: template, begin token, leading space."""

from __future__ import annotations

import time

import pytest
from closed_form import ClosedFormBackend, continuation
from letters_model import TEMPLATE, LettersArtefact, answer, ids_of, letters_tokenizer, text_of
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

import pagedom
from pagedom import ChatTemplate, ChatTemplateError, Engine, RequestError, SamplingParams
from pagedom.runtime.tokenizer import Tokenizer

MESSAGES = [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]
SHORT = SamplingParams(max_tokens=8)


@pytest.fixture
def artefact(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return LettersArtefact(folder, monkeypatch)


def test_chat_renders_encodes_once_and_answers(artefact):
    with Engine(artefact.folder) as engine:
        done = engine.chat(MESSAGES, SHORT)
        assert done.text == answer("s:S;u:Hi;a:", 8)
        assert done.prompt_tokens == len(ids_of("s:S;u:Hi;a:"))  # one begin token
        assert "".join(engine.stream_chat(MESSAGES, SHORT)) == done.text
        request = engine.submit_chat(MESSAGES, SHORT)
        assert request.result().token_ids == done.token_ids
        assert engine.chat_template is engine.chat_template


def test_a_chat_may_be_longer_than_a_completion(artefact):
    with Engine(artefact.folder) as engine:
        limits = [engine.submit_chat(MESSAGES).params, engine.submit("Hi").params]
        assert [params.max_tokens for params in limits] == [512, 128]


def test_the_template_decides_about_the_begin_token(artefact):
    with Engine(artefact.folder) as engine:
        engine.chat_template = ChatTemplate("{{ messages[-1].content }}?")
        ids = engine.submit_chat(MESSAGES, SHORT).result().token_ids
    assert ids == continuation(ids_of("Hi?")[1:], 8)


def test_what_cannot_chat_says_why(artefact):
    with Engine(ClosedFormBackend(), tokenizer=letters_tokenizer()) as engine:
        with pytest.raises(ChatTemplateError, match=r"set engine\.chat_template"):
            engine.chat(MESSAGES)
        engine.chat_template = ChatTemplate(TEMPLATE)
        assert engine.chat(MESSAGES[1:], SHORT).text == answer("u:Hi;a:", 8)
        engine.tokenizer = None
        with pytest.raises(RequestError, match="no tokenizer"):
            engine.chat(MESSAGES)
    (artefact.folder / "chat_template.jinja").unlink()
    with Engine(artefact.folder) as engine, pytest.raises(ChatTemplateError, match="base model"):
        engine.stream_chat(MESSAGES)


def spaced_tokenizer():
    """The letters, with a space before each, which a text of its own does not start with."""
    tokenizer = letters_tokenizer()
    vocab = {"▁" + tokenizer.token(i): i for i in range(95)}
    backend = Backend(models.BPE(vocab, []))
    steps = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    return Tokenizer(backend, {}, None)


def test_only_a_completion_starts_with_the_space_of_its_first_word():
    ids = continuation([1, 2, 3], 4)
    spaced = "".join(" " + letter for letter in text_of(ids))
    with Engine(ClosedFormBackend(), tokenizer=spaced_tokenizer()) as engine:
        params = SamplingParams(max_tokens=4)
        assert engine.generate([[1, 2, 3]], params)[0].text == spaced
        engine.chat_template = ChatTemplate("x")
        engine.tokenizer.encode = lambda *_args, **_more: [1, 2, 3]
        assert engine.chat(MESSAGES, params).text == spaced[1:]
        assert "".join(engine.stream_chat(MESSAGES, params)) == spaced[1:]
        stopped = engine.chat(MESSAGES, SamplingParams(max_tokens=4, stop=spaced[2:4]))
        assert stopped.text == spaced[1:2]


def test_the_names_are_exported_lazily():
    assert pagedom.ChatTemplate is ChatTemplate
    assert {"ChatTemplate", "ChatTemplateError"} <= set(pagedom.__all__)


def test_admission_is_stamped_when_the_step_is_planned():
    class SlowBackend(ClosedFormBackend):
        def wait(self):
            time.sleep(0.05)
            return super().wait()

    with Engine(SlowBackend(), num_pages=60, max_batch=1) as engine:
        first, second = engine.generate([[1, 2], [3, 4]], SamplingParams(max_tokens=2))
    assert first.timings.first_token - first.timings.admitted >= 0.05
    assert first.timings.finished <= second.timings.admitted
