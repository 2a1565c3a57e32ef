"""run-om: generate and the top level, on the real engine with a closed-form model behind it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time

import click
import pytest
from click.testing import CliRunner
from closed_form import VOCAB, continuation
from letters_model import (
    TEMPLATE,
    LettersArtefact,
    answer,
    ids_of,
    invoke,
    letters_tokenizer,
    text_of,
)

from pagedom.runtime.cli import COMMANDS, run_om


@pytest.fixture
def artefact(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    return LettersArtefact(folder, monkeypatch)


def test_one_prompt_is_streamed_to_stdout_alone(artefact):
    result = invoke("generate", artefact.path, "-p", "Hello", "--max-tokens", 20)
    assert result.exit_code == 0, result.output
    assert result.stdout == answer("Hello", 20) + "\n"
    assert "plain completion" in result.stderr
    assert artefact.opened[0][0].closed == 1
    assert artefact.opened[0][1].max_batch == 1  # pages for one sequence are enough


def test_many_prompts_run_together_and_come_in_order(artefact, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo, longer\nthree\n", encoding="utf-8")
    result = invoke("generate", artefact.path, "-p", "zero", "--file", file, "--max-tokens", 5)
    prompts = ["zero", "one", "two, longer", "three"]
    want = "".join(
        f"[{i}/4] {prompt}\n{answer(prompt, 5)}\n" for i, prompt in enumerate(prompts, 1)
    )
    assert result.stdout == want
    assert max(batch for _, batch in artefact.opened[0][0].launches) == 4


def test_json_lines(artefact, tmp_path):
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps(["one", [1, 2, 3]]), encoding="utf-8")
    result = invoke("generate", artefact.path, "--file", file, "--json", "--max-tokens", 6)
    first, second = map(json.loads, result.stdout.splitlines())
    assert first["text"] == answer("one", 6)
    assert first["token_ids"] == continuation(ids_of("one"), 6)
    assert first["finish_reason"] == "length"
    assert first["usage"] == {"prompt_tokens": 4, "completion_tokens": 6, "total_tokens": 10}
    assert first["timings"]["seconds"] >= first["timings"]["seconds_to_first_token"] > 0
    assert second["prompt"] == [1, 2, 3]
    assert second["token_ids"] == continuation([1, 2, 3], 6)


def test_stdin_is_one_prompt_and_dash_is_one_a_line(artefact):
    result = invoke("generate", artefact.path, "--max-tokens", 3, stdin="a\nb\n")
    assert result.stdout == answer("ab", 3) + "\n"  # the vocabulary has no line feed
    result = invoke("generate", artefact.path, "--max-tokens", 3, "--file", "-", stdin="a\nb\n")
    want = f"[1/2] a\n{answer('a', 3)}\n[2/2] b\n{answer('b', 3)}\n"
    assert result.stdout == want


def test_chat_template_by_default_and_raw(artefact):
    (artefact.folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    args = ("generate", artefact.path, "-p", "Hi", "--max-tokens", 8)
    result = invoke(*args)
    assert result.stdout == answer("u:Hi;a:", 8) + "\n"  # with the begin token once
    assert "chat template" in result.stderr
    result = invoke(*args, "--system", "Short")
    assert result.stdout == answer("s:Short;u:Hi;a:", 8) + "\n"
    assert invoke(*args, "--raw").stdout == answer("Hi", 8) + "\n"
    assert invoke(*args, "--raw", "--system", "x").exit_code == 2


def test_the_template_alone_decides_about_the_begin_token(artefact):
    (artefact.folder / "chat_template.jinja").write_text("{{ messages[0].content }}?")
    result = invoke("generate", artefact.path, "-p", "Hi", "--max-tokens", 8)
    assert result.stdout == text_of(continuation(ids_of("Hi?")[1:], 8)) + "\n"


@pytest.mark.parametrize("template", [False, True])
def test_an_empty_prompt_is_refused_before_any_template(artefact, tmp_path, template):
    if template:
        (artefact.folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    result = invoke("generate", artefact.path, "--prompt", "")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Error: the prompt has no tokens" in result.stderr
    (tmp_path / "p.json").write_text('["", "a"]')
    result = invoke("generate", artefact.path, "--file", tmp_path / "p.json", "--json")
    assert ["error" in json.loads(line) for line in result.stdout.splitlines()] == [True, False]


def test_answers_end_later_in_a_chat_template_and_say_so_when_cut_off(artefact):
    result = invoke("generate", artefact.path, "-p", "Hi", "--json")
    assert len(json.loads(result.stdout)["token_ids"]) == 128
    assert "cut off" not in result.stderr  # finish_reason is in the line
    result = invoke("generate", artefact.path, "-p", "Hi")
    assert "(cut off after 128 tokens: --max-tokens allows more)" in result.stderr
    (artefact.folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    result = invoke("generate", artefact.path, "-p", "Hi")
    assert "(cut off: prompt and answer have 256 tokens, the most" in result.stderr
    short = invoke("generate", artefact.path, "-p", "Hi", "--max-tokens", 1)
    assert "(cut off after 1 token: " in short.stderr
    whole = answer("u:Hi;a:", 8)
    result = invoke("generate", artefact.path, "-p", "Hi", "--stop", whole[3:5])
    assert "cut off" not in result.stderr
    args = ("-p", "Hi", "-p", "a", "-p", "b", "--max-tokens", 8, "--stop", whole[3:5])
    assert "(2 of 3 answers were cut off after 8 tokens" in invoke(
        "generate", artefact.path, *args
    ).stderr  # fmt: skip


def test_the_pool_is_for_the_prompts_that_there_are(artefact):
    for count, most in ((1, 1), (3, 3), (20, 16)):
        invoke("generate", artefact.path, *["-p", "x"] * count, "--max-tokens", 1)
        assert artefact.opened[-1][1].max_batch == most
    invoke("generate", artefact.path, "-p", "x", "--max-batch", 40, "--max-tokens", 1)
    assert artefact.opened[-1][1].max_batch == 40


def test_system_without_a_template_says_what_to_do(artefact):
    result = invoke("generate", artefact.path, "-p", "Hi", "--system", "x")
    assert result.exit_code == 1
    assert "no chat template" in result.stderr


def test_a_prompt_that_can_never_fit_is_refused_alone(artefact):
    long = "x" * 300
    result = invoke("generate", artefact.path, "-p", long)
    assert result.exit_code == 1
    assert "301" in result.stderr
    assert "Traceback" not in result.stderr
    result = invoke("generate", artefact.path, "-p", long, "-p", "ok", "--max-tokens", 2, "--json")
    first, second = map(json.loads, result.stdout.splitlines())
    assert "301" in first["error"]
    assert second["text"] == answer("ok", 2)
    assert result.exit_code == 1


def test_stop_seed_and_engine_options_arrive(artefact):
    whole = answer("Hello", 40)
    stop = whole[9:12]
    result = invoke("generate", artefact.path, "-p", "Hello", "--stop", stop, "--max-tokens", 40)
    assert result.stdout == whole[: whole.index(stop)] + "\n"
    args = ("--num-pages", 90, "--threads", 0, "--cache", "contiguous", "--executor", "oracle")
    invoke("generate", artefact.path, "-p", "x", "--check", *args)
    options = artefact.opened[-1][1]
    assert (options.num_pages, options.threads, options.cache) == (90, 0, "contiguous")
    assert (options.executor, options.checked) == ("oracle", True)
    invoke("generate", artefact.path, "-p", "x", "--kv-bytes", "1.5M")
    assert artefact.opened[-1][1].kv_bytes == 1572864


def test_seed_zero_and_temperature_zero_are_values():
    from pagedom.runtime.commands.options import sampling_params

    params = sampling_params(
        {"seed": 0, "temperature": 0.0, "stop": (), "ignore_eos": False}, temperature=0.7
    )
    assert (params.seed, params.temperature) == (0, 0.0)


def test_stats_show_speed_and_pages(artefact):
    result = invoke("generate", artefact.path, "-p", "Hello", "--stats", "--max-tokens", 10)
    assert "prompt 6 tokens" in result.stderr
    assert "output 10 tokens" in result.stderr
    assert "pages used 4 of" in result.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--promt", "x"], "Did you mean"),
        (["-p", "x", "--top-p", "3"], "top_p is 3.0"),
        (["-p", "x", "--stop", ""], "empty string"),
        (["-p", "x", "--kv-bytes", "lots"], "like 512M"),
        (["-p", "x", "--num-pages", "1"], "1 is not in the range x>=2"),
        (["-p", "x", "--kv-bytes", "1M", "--num-pages", "9"], "give one of them"),
        (["--file", "nowhere.txt"], "nowhere.txt"),
        ([], "no prompt"),
    ],
)
def test_misuse_is_exit_code_2_with_a_hint(artefact, args, words):
    result = invoke("generate", artefact.path, *args, stdin="")
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stdout == ""
    assert not artefact.opened


def test_unknown_command_and_missing_artefact():
    result = invoke("generat")
    assert result.exit_code == 2
    assert "Did you mean generate" in result.stderr
    for name, words in (("/nonexistent", "does not exist"), (__file__, "is a file")):
        result = invoke("generate", name, "-p", "x")
        assert result.exit_code == 2
        assert f"{words}: an artefact is a folder, and compile-model MODEL" in result.stderr


def test_errors_of_every_kind(artefact):
    args = ("generate", artefact.path, "-p", "x")
    for error, code, words in (
        (OSError(2, "No such file", "model.om"), 1, "model.om: No such file"),
        (ValueError("the manifest says 3"), 1, "Error: the manifest says 3"),
        (KeyError("x"), 70, "internal error: KeyError"),
    ):
        artefact.error = error
        result = invoke(*args)
        assert result.exit_code == code
        assert words in result.stderr
        assert "Traceback" not in result.stderr
        assert "Traceback" in invoke(*args, "--debug").stderr


def test_a_warning_of_the_library_is_shown_once_a_command(artefact, monkeypatch):
    from pagedom.runtime.commands import generate

    def open_engine(*args, **defaults):
        for _ in range(2):
            logging.getLogger("pagedom.runtime.acl").warning("computed in %s", "bfloat16")
        return real(*args, **defaults)

    real = generate.open_engine
    monkeypatch.setattr(generate, "open_engine", open_engine)
    for _ in range(2):
        result = invoke("generate", artefact.path, "-p", "x", "--max-tokens", 1)
        assert result.stderr.count("warning: computed in bfloat16\n") == 1


def test_a_failing_device_is_an_error_not_a_hang(artefact):
    artefact.fail_at = {2}
    result = invoke("generate", artefact.path, "-p", "x")
    assert result.exit_code == 1
    assert "injected" in result.stderr


def test_ctrl_c_exits_130_and_closes_the_engine(artefact, monkeypatch):
    from pagedom.runtime.commands import generate

    calls = []

    def write(text):
        calls.append(text)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(generate, "write", write)
    result = invoke("generate", artefact.path, "-p", "Hello")
    assert result.exit_code == 130
    assert "Traceback" not in result.output
    assert artefact.opened[0][0].closed == 1


def test_a_reader_that_leaves_is_silent(artefact, monkeypatch):
    from pagedom.runtime.commands import generate

    def write(_text):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(generate, "write", write)
    result = invoke("generate", artefact.path, "-p", "Hello")
    assert result.exit_code == 141
    assert "pipe" not in result.stderr.lower()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_loads_and_teaches(name):
    result = invoke(name, "--help")
    assert result.exit_code == 0
    assert "--debug" in result.output
    narrow = CliRunner().invoke(run_om, [name, "--help"], terminal_width=80).output
    assert max(map(len, narrow.splitlines())) <= 80
    command = run_om.get_command(click.Context(run_om), name)
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_help_is_fast_and_complete():
    code = "import pagedom.runtime.cli as c, sys; sys.argv = ['run-om', '--help']; c.main()"
    best = min(_seconds([sys.executable, "-c", code]) for _ in range(3))
    bare = min(_seconds([sys.executable, "-c", "pass"]) for _ in range(3))
    assert best - bare < 0.2
    text = invoke("--help").output
    assert all(name in text for name in COMMANDS)
    assert "Exit codes" in text


def _seconds(command):
    began = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - began


def test_vocabulary_of_the_fixture_is_the_models():
    assert letters_tokenizer().vocab_size == VOCAB
