"""Stop strings in a stream: nothing of a stop is ever sent, and nothing else is held back.

The text is read character by character through an Aho-Corasick automaton (A. Aho, M. Corasick,
"Efficient string matching", CACM 1975), so the answer does not depend on how tokens cut it. The
stop that is complete first wins; of two that are complete at the same character, the longer one.

    stops ["named Lily"]   deltas  "girl ", "nam", "ed", " Bob"
                           sent    "girl ", "",    "",   "named Bob"
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopStrings:
    """The automaton for one set of stop strings; immutable, shared by requests that use the set."""

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty: it would match everywhere; leave it out")
        self.stops = tuple(stops)
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._fail = self._link()

    def _insert(self, stop: str) -> None:
        state = 0
        for letter in stop:
            if letter not in self._next[state]:
                self._next[state][letter] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = self._next[state][letter]
        self._found[state] = stop

    def _link(self) -> list[int]:
        """Breadth first: a state's fallback is the longest proper suffix that is also a prefix."""
        fail = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for letter, child in self._next[state].items():
                queue.append(child)
                back = fail[state]
                while back and letter not in self._next[back]:
                    back = fail[back]
                fail[child] = self._next[back].get(letter, 0)
            # A shorter stop that ends here too; the longer one, if any, has precedence.
            self._found[state] = self._found[state] or self._found[fail[state]]
        return fail

    def step(self, state: int, letter: str) -> int:
        """Return the state after one more character."""
        while state and letter not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(letter, 0)

    def held(self, state: int) -> int:
        """Return how many of the last characters could still become a stop."""
        return self._depth[state]

    def found(self, state: int) -> str | None:
        """Return the stop that is complete in this state."""
        return self._found[state]


class StopMatcher:
    """Filters the text of one answer; `matched` is the stop string that ended it, or None."""

    def __init__(self, stops: StopStrings | Sequence[str]) -> None:
        self._stops = stops if isinstance(stops, StopStrings) else StopStrings(stops)
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def feed(self, delta: str) -> str:
        """Take new text and return what may be sent; after a match always ""."""
        if self.matched is not None:
            return ""
        if not self._stops.stops:
            return delta
        text = self._held + delta
        for index, letter in enumerate(delta, len(self._held)):
            self._state = self._stops.step(self._state, letter)
            stop = self._stops.found(self._state)
            if stop is not None:
                self.matched, self._held = stop, ""
                return text[: index + 1 - len(stop)]
        cut = len(text) - self._stops.held(self._state)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """Return what was held back: the answer ended, so it became no stop."""
        rest, self._held = self._held, ""
        return rest
