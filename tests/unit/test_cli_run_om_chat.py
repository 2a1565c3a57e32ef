"""run-om chat: history, commands, Ctrl-C, pipes."""

from __future__ import annotations

import pytest
from letters_model import TEMPLATE, LettersArtefact, answer, invoke

from pagedom.runtime.commands import chat as chat_module


@pytest.fixture
def artefact(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return LettersArtefact(folder, monkeypatch)


def chat(artefact, lines, *args):
    return invoke("chat", artefact.path, "--max-tokens", 6, *args, stdin="\n".join(lines) + "\n")


def test_piped_lines_are_messages_with_history(artefact):
    result = chat(artefact, ["Hi", "", "And?"])
    first = answer("u:Hi;a:", 6)
    second = answer(f"u:Hi;a:{first};u:And?;a:", 6)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{first}\n{second}\n"
    assert result.stderr.count("(cut off after 6 tokens: --max-tokens allows more)") == 2
    long = invoke("chat", artefact.path, stdin="Hi\n")  # 512 tokens are allowed, 256 fit
    assert "256 tokens, the most that the model or its KV cache takes; /reset" in long.stderr


def test_reset_exit_and_unknown_commands(artefact):
    result = chat(artefact, ["Hi", "/reset", "/what", "Hi", "/exit", "never"], "--system", "S")
    one = answer("s:S;u:Hi;a:", 6)
    assert result.stdout == f"{one}\n{one}\n"
    assert "forgotten" in result.stderr
    assert "/what is no command" in result.stderr


def test_a_message_that_does_not_fit_is_reported_and_forgotten(artefact):
    result = chat(artefact, ["x" * 300, "Hi"])
    assert result.exit_code == 0
    assert result.stdout == answer("u:Hi;a:", 6) + "\n"
    assert "Error" in result.stderr


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(artefact, monkeypatch):
    said = []

    def write(text):
        said.append(text)
        if len(said) == 1:  # a delta may hold several tokens: only the first is sure to come
            raise KeyboardInterrupt

    monkeypatch.setattr(chat_module, "write", write)
    result = chat(artefact, ["Hi", "And?"])
    assert result.exit_code == 0
    assert "(stopped)" in result.stderr
    # One delta, the new line after the stop, then the second answer.
    heard = said[0]
    assert answer("u:Hi;a:", 6).startswith(heard)
    assert said[1] == "\n"
    assert "".join(said[2:-1]) == answer(f"u:Hi;a:{heard};u:And?;a:", 6)


def test_terminal_input(artefact, monkeypatch):
    inputs = iter(["  Hi ", KeyboardInterrupt, "", EOFError])

    def ask(_prompt):
        item = next(inputs)
        if isinstance(item, str):
            return item
        raise item

    monkeypatch.setattr(chat_module, "_interactive", lambda: True)
    monkeypatch.setattr("builtins.input", ask)
    result = chat(artefact, [])
    assert result.exit_code == 0
    assert result.stdout.startswith(answer("u:Hi;a:", 6) + "\n")
    assert "Ctrl-D" in result.stderr


def test_a_base_model_cannot_chat(artefact):
    (artefact.folder / "chat_template.jinja").unlink()
    result = chat(artefact, ["Hi"])
    assert result.exit_code == 1
    assert "no chat template" in result.stderr
    assert "run-om generate" in result.stderr
    assert not artefact.opened


def test_a_template_that_refuses_keeps_the_conversation(artefact):
    (artefact.folder / "chat_template.jinja").write_text(
        "{% if 'bad' in messages[-1].content %}{{ raise_exception('no bad words') }}{% endif %}"
        + TEMPLATE
    )
    result = chat(artefact, ["bad", "Hi"])
    assert result.stdout == answer("u:Hi;a:", 6) + "\n"
    assert "no bad words" in result.stderr
