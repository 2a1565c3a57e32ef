"""Chat templates: what they may use, where they fail, and twenty real ones."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

import pytest

from pagedom.runtime.chat_template import ChatTemplate, ChatTemplateError

USER = [{"role": "user", "content": "Hi <&> 你好"}]
TALK = [
    {"role": "user", "content": "One plus one?"},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": "And 'three'?"},
]
SYSTEM = [{"role": "system", "content": "Be brief."}, *TALK]
TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}


def test_plain_rendering_trims_blocks_and_escapes_nothing():
    source = (
        "{{ bos_token }}{% for m in messages %}\n"
        "    {% if loop.index0 == 2 %}{% break %}{% endif %}\n"
        "<{{ m.role }}>{{ m['content'] | trim }}{{ eos_token }}\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    template = ChatTemplate(source, TOKENS)
    assert template.render(USER) == "<BOS><user>Hi <&> 你好<EOS>\n<assistant>"
    assert template.render(TALK, add_generation_prompt=False).count("<EOS>") == 2


def test_helpers():
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }}|{{ tools | tojson }}|{{ extra }}|{{ nothing }}|"
        "{% generation %}body{% endgeneration %}",
        now=lambda: datetime(2026, 11, 30),
    )
    tools = [{"name": "é<b>", "z": 1, "a": None}]
    text = template.render(USER, tools=tools, extra="x")
    assert text == '30 Nov 2026|[{"name": "é<b>", "z": 1, "a": null}]|x||body'
    assert ChatTemplate("{{ 'd' if tools is none }}").render(USER) == "d"
    assert ChatTemplate("{{ [1]|tojson(indent=1) }}").render(USER) == "[\n 1\n]"


def test_a_refusal_carries_the_templates_words():
    template = ChatTemplate("{{ raise_exception('System role not supported') }}")
    with pytest.raises(ChatTemplateError, match=r"refuses.*System role not supported"):
        template.render(SYSTEM)


def test_errors_name_the_line():
    with pytest.raises(ChatTemplateError, match=r"not valid Jinja: line 2"):
        ChatTemplate("ok\n{% if %}")
    template = ChatTemplate("a\nb\n{{ messages[0].content + 3 }}")
    with pytest.raises(ChatTemplateError, match=r"line 3: TypeError.*roles were user"):
        template.render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ raise_exception.__globals__.os }}",
    ],
)
def test_the_sandbox_holds(source):
    messages = [dict(USER[0])]
    with pytest.raises(ChatTemplateError, match=r"sandbox|unsafe"):
        ChatTemplate(source).render(messages)
    assert messages == USER


@pytest.mark.parametrize("messages", [[], ["hi"], [{"content": "x"}], [{"role": 3}]])
def test_malformed_conversations_are_refused_before_rendering(messages):
    with pytest.raises(ChatTemplateError, match=r"message"):
        ChatTemplate("x").render(messages)


def test_where_a_template_is_found(tmp_path):
    assert ChatTemplate.find(tmp_path) is None
    with pytest.raises(ChatTemplateError, match=r"no chat template.*base model"):
        ChatTemplate.from_folder(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        json.dumps({"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}config"})
    )
    assert ChatTemplate.from_folder(tmp_path).render(USER) == "<s>config"
    named = [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert ChatTemplate.from_folder(tmp_path).render(USER) == "d"
    config.write_text(json.dumps({"chat_template": named[:1]}))
    with pytest.raises(ChatTemplateError, match="'tool'"):
        ChatTemplate.find(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    assert ChatTemplate.from_folder(tmp_path).render(USER) == "file"
    config.write_text("{")
    with pytest.raises(ChatTemplateError, match="not valid JSON"):
        ChatTemplate.find(tmp_path)


def real_templates() -> list[Path]:
    beside = Path(__file__).resolve().parents[3] / "shared"
    folder = Path(os.environ.get("PAGEDOM_SHARED", beside)) / "data" / "chat-templates"
    return sorted(folder.glob("*.jinja"))


# Conversations a template refuses on purpose, with the template's own reason.
REFUSED = {("google-gemma-2-2b-it", "system"): "System role not supported"}

# The assistant's turn has no opening: it starts right after the user's [/INST].
WITHOUT_OPENING = {
    "Mistral-Small-3.2-24B-Instruct-2506",
    "mistralai-Mistral-Nemo-Instruct-2407",
}


@pytest.mark.shared
@pytest.mark.skipif(not real_templates(), reason="needs the developers' shared data folder")
@pytest.mark.parametrize("kind", ["user", "talk", "system"])
@pytest.mark.parametrize("path", real_templates(), ids=lambda path: path.stem)
def test_real_templates_render(path, kind):
    messages = {"user": USER, "talk": TALK, "system": SYSTEM}[kind]
    template = ChatTemplate(path.read_text(encoding="utf-8"), TOKENS)
    reason = REFUSED.get((path.stem, kind))
    if reason:
        with pytest.raises(ChatTemplateError, match=reason):
            template.render(messages)
        return
    # This one is for tool calls only: it loops over the tools without asking whether there are any.
    variables = {"tools": []} if path.stem.endswith("-tool_use") else {}
    text = template.render(messages, **variables)
    for message in messages:
        assert message["content"] in text
    opened = text != template.render(messages, add_generation_prompt=False, **variables)
    assert opened is (path.stem not in WITHOUT_OPENING)
