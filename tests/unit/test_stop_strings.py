"""Stop strings: the beginning of a stop never leaks, nothing else waits, chunks do not matter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedom.runtime.stop_strings import StopMatcher, StopStrings

STORY = [", ", "there ", "was a", " little", " girl", " n", "am", "ed ", "L", "ily", ". She"]
STORY += [" lov", "ed to", " pl", "ay"]


def run(stops, deltas):
    """Feed deltas until a stop matches; return the pieces sent, the stop, and the deltas used."""
    matcher = StopMatcher(stops)
    sent = []
    for used, delta in enumerate(deltas, 1):
        sent.append(matcher.feed(delta))
        if matcher.matched is not None:
            return sent, matcher.matched, used
    return [*sent, matcher.finish()], None, len(deltas)


def reference(stops, text):
    """Cut where the first stop is complete; of several complete there, at the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("stops", "want", "matched"),
    [
        (["named Lily"], ", there was a little girl ", "named Lily"),
        (["irl n"], ", there was a little g", "irl n"),
        (["y to pl"], "".join(STORY), None),
        (["d to pl"], ", there was a little girl named Lily. She love", "d to pl"),
        (["Lily.", "named"], ", there was a little girl ", "named"),
        (["zzz"], "".join(STORY), None),
        (["upon"], "".join(STORY), None),
        ([], "".join(STORY), None),
    ],
)
def test_case_19(stops, want, matched):
    sent, found, _ = run(stops, STORY)
    assert "".join(sent) == want
    assert found == matched


def test_nothing_after_the_stop_is_sent_and_feeding_on_is_silent():
    matcher = StopMatcher(["named Lily"])
    assert matcher.feed("girl ") == "girl "
    assert [matcher.feed(part) for part in ("nam", "ed Li", "ly. She")] == ["", "", ""]
    assert matcher.matched == "named Lily"
    assert matcher.feed("more") == ""
    assert matcher.finish() == ""


def test_only_what_could_become_a_stop_is_held():
    matcher = StopMatcher(["abab!"])
    assert matcher.feed("xab") == "x"
    assert matcher.feed("ab") == ""
    assert matcher.feed("ab") == "ab"  # "ababab" may still end in "abab!"
    assert matcher.feed("?") == "abab?"
    assert matcher.finish() == ""
    assert matcher.feed("ab") == ""
    assert matcher.finish() == "ab"


def test_the_stop_that_is_complete_first_wins():
    assert run(["abcd", "bc"], ["abcd"])[:2] == (["a"], "bc")
    assert run(["bc", "abc"], ["xabc"])[:2] == (["x"], "abc")


def test_a_stop_that_overlaps_itself_is_found():
    text = "aabaaabaaac!"
    sent, matched, used = run(["aabaaac"], list(text))
    assert ("".join(sent), matched, used) == ("aaba", "aabaaac", 11)


def test_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStrings(["a", ""])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.text("ab", min_size=1, max_size=7), max_size=4),
    st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_any_chunks_give_the_reference_answer(stops, deltas):
    sent, matched, _ = run(stops, deltas)
    want, stop = reference(stops, "".join(deltas))
    assert ("".join(sent), matched) == (want, stop)
    # What is sent is exactly the text so far minus the longest suffix that begins a stop.
    if matched is None:
        text = ""
        given_out = ""
        for delta, piece in zip(deltas, sent):
            text, given_out = text + delta, given_out + piece
            held = max(
                (n for n in range(len(text) + 1) for s in stops if n < len(s) and n
                 and text.endswith(s[:n])), default=0)  # fmt: skip
            assert given_out == text[: len(text) - held]
