"""The engine as callers see it: threads, streams, ends, errors, interrupts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from closed_form import VOCAB, ClosedFormBackend, continuation, next_token

from pagedom.runtime.engine import Engine, EngineError
from pagedom.runtime.engine_options import EngineOptions
from pagedom.runtime.request import RequestError, RequestFailed
from pagedom.runtime.sampling_params import SamplingError, SamplingParams

PROMPTS = [[(5 * i + n) % VOCAB for i in range(n)] for n in (8, 3, 21, 1, 16, 4, 30)]


class LetterText:
    """A tokenizer whose token 2k and 2k+1 are the letter k of an alphabet: text from any ids."""

    ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

    def encode(self, text: str, add_bos: bool = True) -> list[int]:
        return [2 * self.ALPHABET.index(letter) for letter in text]

    def detokenizer(self, skip_special: bool = True, continuation: bool = False) -> LetterText:
        return self

    def feed(self, ids: list[int], last: bool = False) -> str:
        return "".join(self.ALPHABET[token // 2] for token in ids)


def engine(backend: ClosedFormBackend | None = None, **settings) -> Engine:
    settings = {"num_pages": 60, "max_batch": 4, "max_batch_tokens": 16, "checked": True} | settings
    return Engine(backend or ClosedFormBackend(), tokenizer=LetterText(), **settings)


def test_generate_returns_a_completion_for_each_prompt_in_order():
    with engine() as one:
        completions = one.generate(PROMPTS, SamplingParams(max_tokens=10))
    for prompt, completion in zip(PROMPTS, completions):
        assert completion.token_ids == continuation(prompt, 10)
        assert completion.finish_reason == "length"
        assert completion.prompt_tokens == len(prompt)
        assert completion.text == LetterText().feed(completion.token_ids)
        timings = completion.timings
        assert timings.submitted <= timings.admitted <= timings.first_token <= timings.finished


def test_one_prompt_and_one_parameter_each():
    with engine() as one:
        assert len(one.generate([5, 6, 7])) == 1
        assert one.generate("abc", SamplingParams(max_tokens=2))[0].prompt_tokens == 3
        short, long = one.generate(
            [[5], [5]], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=3)]
        )
        assert (len(short.token_ids), len(long.token_ids)) == (1, 3)
        assert one.generate([]) == []
        with pytest.raises(ValueError, match="2 prompts but 1 sampling"):
            one.generate([[5], [5]], [SamplingParams()])


def test_a_step_at_a_time():
    with engine() as one:
        request = one.submit([1, 2, 3], SamplingParams(max_tokens=3))
        assert [one.step() for _ in range(4)] == [True, True, True, False]
        assert request.finished
        assert request.completion().token_ids == continuation([1, 2, 3], 3)


def test_stream_yields_the_text_of_generate():
    params = SamplingParams(max_tokens=12)
    with engine() as one:
        whole = one.generate("abc", params)[0].text
        assert "".join(one.stream("abc", params)) == whole


def test_leaving_a_stream_cancels_the_request():
    with engine() as one:
        stream = one.stream("abc", SamplingParams(max_tokens=40))
        next(stream)
        stream.close()
        wait_until(lambda: one.statistics().pool.held == 0)
        assert one.statistics().running == 0


def test_iteration_over_tokens():
    with engine() as one:
        request = one.submit([4, 5], SamplingParams(max_tokens=7))
        assert list(request) == continuation([4, 5], 7)
        assert list(request) == []


def eos_case() -> tuple[list[int], int, int]:
    """Return a prompt, a token that its answer contains, and where it comes first."""
    prompt = [3, 1, 4, 1, 5]
    answer = continuation(prompt, 20)
    return prompt, answer[4], answer.index(answer[4])


def test_an_end_token_stops_and_is_not_text():
    prompt, eos, at = eos_case()
    with engine(ClosedFormBackend(eos_ids=(VOCAB - 1, eos))) as one:
        completion = one.generate(prompt, SamplingParams(max_tokens=20))[0]
        assert completion.finish_reason == "stop"
        assert completion.token_ids == continuation(prompt, at + 1)
        assert completion.text == LetterText().feed(completion.token_ids[:-1])
        ignored = one.generate(prompt, SamplingParams(max_tokens=20, ignore_eos=True))[0]
        assert ignored.finish_reason == "length"
        assert len(ignored.token_ids) == 20


def test_a_stop_string_ends_the_answer_and_is_not_shown():
    answer = continuation([3, 1, 4], 20)
    text = LetterText().feed(answer)
    stop = text[6:9]
    at = text.index(stop)
    params = SamplingParams(max_tokens=20, stop=(stop, "zz"))
    with engine() as one:
        completion = one.generate([3, 1, 4], params)[0]
        assert completion.finish_reason == "stop"
        assert completion.text == text[:at]
        assert completion.token_ids == answer[: at + 3], "the tokens of the stop are counted"
        assert "".join(one.stream([3, 1, 4], params)) == text[:at]
        assert one.statistics().pool.held == 0


def test_a_stop_string_in_the_last_allowed_token():
    answer = continuation([3, 1, 4], 6)
    stop = LetterText().feed(answer)[-2:]
    with engine() as one:
        completion = one.generate([3, 1, 4], SamplingParams(max_tokens=6, stop=stop))[0]
        assert completion.finish_reason == "stop"
        unmet = one.generate([3, 1, 4], SamplingParams(max_tokens=6, stop="zzz"))[0]
        assert unmet.finish_reason == "length"
        assert unmet.text == LetterText().feed(answer)


def test_stop_strings_without_a_tokenizer_are_refused():
    with Engine(ClosedFormBackend(), num_pages=20) as one:
        with pytest.raises(RequestError, match="need a tokenizer"):
            one.submit([1], SamplingParams(stop="x"))
        with pytest.raises(RequestError, match="submit token ids"):
            one.submit("abc")
        assert one.statistics().waiting == 0


@pytest.mark.parametrize("prompt", [[], [[1, 2]], [1.5], [VOCAB], [-1], [1 << 40], [True]])
def test_bad_prompts_are_refused_and_nothing_is_lost(prompt):
    with engine() as one:
        with pytest.raises(ValueError, match=r"prompt|vocabulary"):
            one.submit(prompt)
        assert one.generate([1, 2], SamplingParams(max_tokens=3))[0].token_ids
        assert one.statistics().pool.held == 0


def test_no_tokens_to_generate():
    with pytest.raises(SamplingError, match="max_tokens"):
        SamplingParams(max_tokens=0)


def test_one_bad_prompt_of_a_batch_cancels_the_others():
    with engine() as one:
        with pytest.raises(RequestError):
            one.generate([[1, 2], [VOCAB], [3]], SamplingParams(max_tokens=30))
        wait_until(lambda: one.statistics().pool.held == 0)
        assert one.statistics().waiting == one.statistics().running == 0


def test_an_unknown_setting_is_refused_with_a_near_one():
    with pytest.raises(TypeError, match="'max_batches'; did you mean 'max_batch'"):
        Engine(ClosedFormBackend(), max_batches=4)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_pages": 4, "kv_bytes": 4096}, "give one of them"),
        ({"cache": "virtual"}, "use 'paged' or 'contiguous'"),
        ({"num_pages": 1}, "page 0 is the null page"),
        ({"kv_bytes": 100}, "hold 0 page"),
        ({"max_batch": 8, "max_batch_tokens": 4}, "at least max_batch"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, text):
    with pytest.raises(ValueError, match=text):
        Engine(ClosedFormBackend(), **settings)


@pytest.mark.parametrize(("compiled", "asked", "most"),
                         [(64, None, 16), (4, None, 4), (0, None, 16), (64, 40, 40)])  # fmt: skip
def test_the_default_batch_is_16_and_never_more_than_compiled(compiled, asked, most):
    backend = ClosedFormBackend()
    facts = replace(backend.facts, max_batch=compiled)
    resolved = EngineOptions(max_batch=asked).resolve(facts)
    assert resolved.policy.max_batch == most
    assert resolved.num_pages == 1 + most * 16  # all of full length: 64 tokens on pages of 4


@pytest.mark.parametrize(("pages", "words"), [(2, "(1 page of 4)"), (3, "(2 pages of 4)")])
def test_a_small_pool_is_told_in_words(caplog, pages, words):
    EngineOptions(num_pages=pages).resolve(ClosedFormBackend().facts)
    assert words in caplog.text


def test_refusals_come_without_a_warning(caplog):
    with pytest.raises(ValueError, match="at least 2 pages"):
        Engine(ClosedFormBackend(), num_pages=1)
    assert not caplog.records


def test_calls_from_many_threads():
    """Case 10: load here, generate there, close elsewhere; the device sees one thread."""
    backend = ClosedFormBackend()
    seen = set()
    backend.gate = lambda: seen.add(threading.get_ident())
    one = engine(backend)
    answers = {}

    def work(n: int) -> None:
        answers[n] = one.generate(PROMPTS[n], SamplingParams(max_tokens=10 + n))[0].token_ids

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    closer = threading.Thread(target=one.close)
    closer.start()
    closer.join(30)
    assert answers == {n: continuation(PROMPTS[n], 10 + n) for n in range(len(PROMPTS))}
    assert backend.closed == 1
    assert len(seen) == 1
    assert threading.get_ident() not in seen


def test_start_runs_without_anybody_waiting_and_rings_once_a_step():
    rings = []
    with engine() as one:
        one.add_listener(lambda: rings.append(1))
        one.start()
        request = one.submit([1, 2], SamplingParams(max_tokens=5))
        wait_until(lambda: request.finished)
        assert request.poll_tokens() == continuation([1, 2], 5)
        assert request.poll_tokens() == []
        assert len(rings) == 5


def test_a_device_error_is_the_requests_error_and_the_engine_goes_on():
    """Case 11: failed executes leak nothing."""
    backend = ClosedFormBackend()
    backend.fail_at = {2}
    with engine(backend) as one:
        with pytest.raises(RequestFailed, match="injected") as caught:
            one.generate([1, 2, 3], SamplingParams(max_tokens=9))
        assert isinstance(caught.value.__cause__, OSError)
        assert one.statistics().pool.held == 0
        assert one.generate([1, 2, 3], SamplingParams(max_tokens=9))[0].token_ids
        assert one.statistics().failed_steps == 1


def test_logits_that_cannot_be_sampled_end_their_request_only():
    backend = ClosedFormBackend(device_argmax=False)
    plain = backend.wait

    def wait():
        output = plain()
        logits = output.logits(np.arange(backend.launches[-1][1]))
        if backend.launches[-1][1] == 2 and len(backend.launches) == 4:
            logits[1] = np.nan
        output.logits = lambda rows: logits[rows]
        return output

    backend.wait = wait
    params = SamplingParams(max_tokens=9)
    with engine(backend) as one:
        good, bad = one.submit(PROMPTS[0], params), one.submit(PROMPTS[1], params)
        assert good.result().token_ids == continuation(PROMPTS[0], 9)
        with pytest.raises(RequestFailed, match="NaN"):
            bad.result()


def test_a_bug_in_the_loop_leaves_nobody_waiting():
    with engine() as one:
        one._core.scheduler.commit = None
        request = one.submit([1, 2], SamplingParams(max_tokens=5))
        with pytest.raises(RequestFailed):
            request.result(10)
        with pytest.raises(EngineError, match="the engine broke"):
            one.submit([1])
        with pytest.raises(EngineError, match="the engine broke"):
            one.step()


def test_a_failing_open_raises_in_the_constructor():
    backend = ClosedFormBackend()

    def no_memory(*_args):
        raise MemoryError("207001")

    backend.open = no_memory
    with pytest.raises(MemoryError, match="207001"):
        engine(backend)


def test_close_ends_what_is_left():
    backend = ClosedFormBackend()
    one = engine(backend)
    request = one.submit([1, 2], SamplingParams(max_tokens=50))
    one.step()
    one.close()
    one.close()
    assert request.finish_reason == "error"
    assert backend.closed == 1
    with pytest.raises(EngineError, match="closed"):
        one.submit([1])
    with pytest.raises(RequestFailed, match="closed"):
        request.result()


def test_random_answers_do_not_depend_on_neighbours_or_preemption():
    """Case 20: the same seed gives the same tokens alone, in company, and after a preemption."""
    params = SamplingParams(max_tokens=16, temperature=3.0, seed=42)
    with engine() as one:
        alone = one.generate([5, 6, 7, 8, 9, 1, 2, 3], params)[0].token_ids
        assert alone != continuation([5, 6, 7, 8, 9, 1, 2, 3], 16), "the temperature does something"
    with engine(num_pages=9, reserve_pages=0.0) as one:
        noise = SamplingParams(max_tokens=20, temperature=5.0)
        requests = [one.submit([n] * 8, noise) for n in range(2)]
        requests.append(one.submit([5, 6, 7, 8, 9, 1, 2, 3], params))
        requests.append(one.submit([5, 6, 7, 8, 9, 1, 2, 3], params))
        answers = [request.result().token_ids for request in requests]
        assert answers[2] == answers[3] == alone
        assert one.statistics().preemptions > 0
        assert one.submit([1] * 8, noise).result().token_ids != answers[1]


def test_a_bias_acts_on_its_own_request_only():
    biased = SamplingParams(max_tokens=8, logit_bias={11: 100.0})
    with engine() as one:
        plain, forced = one.generate([[1, 2], [1, 2]], [SamplingParams(max_tokens=8), biased])
        assert plain.token_ids == continuation([1, 2], 8)
        assert forced.token_ids == [11] * 8


def test_page_trace(tmp_path):
    path = tmp_path / "pages.jsonl"
    with engine(page_trace=path) as one:
        one.generate(PROMPTS[:3], SamplingParams(max_tokens=5))
    header, *steps = map(json.loads, path.read_text().splitlines())
    assert header == {"format": 1, "num_pages": 60, "page_size": 4}
    held: dict[str, list[int]] = {}
    for step in steps:
        held |= step["held"]
        for key in step["gone"]:
            del held[str(key)]
        pages = [page for pages in held.values() for page in pages]
        assert len(pages) == len(set(pages))
    assert held == {}


def test_nothing_is_kept_of_finished_requests():
    with engine() as one:
        for _ in range(50):
            one.generate(PROMPTS[:4], SamplingParams(max_tokens=2, stop="zz"))
        core = one._core
        assert core.rows.requests == []
        assert not core.scheduler.waiting
        assert not core._stops.active
        assert core._cancelled == []


INTERRUPTED = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
from closed_form import ClosedFormBackend, continuation
from pagedom.runtime.engine import Engine
from pagedom.runtime.sampling_params import SamplingParams
backend = ClosedFormBackend(max_seq_len=4096)
backend.gate = lambda: time.sleep(0.002)
with Engine(backend, num_pages=2000) as engine:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        engine.generate([1, 2, 3], SamplingParams(max_tokens=4000))
    except KeyboardInterrupt:
        pass
    else:
        sys.exit("not interrupted")
    deadline = time.monotonic() + 5
    while engine.statistics().pool.held and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.statistics().pool.held == 0
    answer = engine.generate([1, 2, 3], SamplingParams(max_tokens=5))[0].token_ids
    assert answer == continuation([1, 2, 3], 5), answer
"""


def test_ctrl_c_cancels_and_the_engine_goes_on():
    from pathlib import Path

    folder = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, folder], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_thousand_steps_keep_memory_flat():
    """Case 11: what lives during steps does not grow with them."""
    import gc

    with engine(ClosedFormBackend(max_seq_len=64), num_pages=200) as one:

        def burst() -> int:
            one.generate([[n] for n in range(1, 9)], SamplingParams(max_tokens=40))
            gc.collect()
            return len(gc.get_objects())

        burst()
        before = burst()
        for _ in range(5):
            after = burst()
        assert after - before < 200


def wait_until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.002)


def test_the_formula_notices_order_and_place():
    assert next_token([1, 2, 3]) != next_token([2, 1, 3])
    assert next_token([1, 2]) != next_token([1, 2, 0])
