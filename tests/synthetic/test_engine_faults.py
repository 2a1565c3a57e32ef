"""The engine over a failing device: the n-th call of a kind fails, for every n until none is left.

Whatever fails, requests end with the right tokens or with the error, those that were not part of
the failing step go on, and after the end nothing is left of memory, handles or pages.
"""

from __future__ import annotations

import gc
import itertools
import random
import statistics
from itertools import pairwise
from pathlib import Path

import pytest
from formula_engines import CALL_KINDS, HAND_MADE, VOCAB, check_clean, continuation, make_backend

from pagedom.runtime.acl.error_table import DEVICE_LOST
from pagedom.runtime.acl.errors import AclError
from pagedom.runtime.acl.faults import FaultPlan
from pagedom.runtime.artifact import Artifact
from pagedom.runtime.engine import Engine, EngineError
from pagedom.runtime.request import RequestFailed
from pagedom.runtime.sampling_params import SamplingParams

MAX_BATCH = 2
NUM_PAGES = 30
TOKENS = 4
PROMPTS = [[5, 9, 2], list(range(18)), [40, 41], [7] * 5, [1]]


class Trial:
    """One life of an engine on a device with one fault."""

    def __init__(self, artifact: Artifact, form: str, kind: str, number: int, code: int) -> None:
        faults = FaultPlan(**{kind: {number: code}})
        backend = make_backend(artifact, self_test=False, faults=faults)
        self.acl = backend._acl
        self.form, self.kind, self.number, self.code = form, kind, number, code
        self.failed: list[int] = []  # prompts that ended with the error
        self.errors: list[str] = []
        self.opened = self.usable = False
        try:
            engine = Engine(
                backend,
                num_pages=NUM_PAGES,
                max_batch=MAX_BATCH,
                max_batch_tokens=16,
                checked=True,
            )
        except AclError as error:
            self.errors.append(str(error))
            return
        self.opened = True
        with engine:
            self._serve(engine)

    @property
    def fired(self) -> bool:
        """Whether the device got as far as the fault."""
        return self.acl._core.faults._counts[self.kind] >= self.number

    def _serve(self, engine: Engine) -> None:
        params = SamplingParams(max_tokens=TOKENS)
        requests = [engine.submit(prompt, params) for prompt in PROMPTS]
        for place, (request, prompt) in enumerate(zip(requests, PROMPTS)):
            try:
                answer = request.result()
            except RequestFailed as failure:
                self.errors.append(str(failure))
                self.failed.append(place)
            else:
                assert list(answer.token_ids) == continuation(self.form, prompt, TOKENS)
        # There is one fault: if it hits the first of these, the second is served.
        for _ in range(2):
            try:
                assert engine.statistics().pool.held == 0
                after = engine.generate([[3, 1, 4]], params)[0]
            except (EngineError, RequestFailed) as error:
                self.errors.append(str(error))
            else:
                assert list(after.token_ids) == continuation(self.form, [3, 1, 4], TOKENS)
                self.usable = True
                return

    def check_nothing_is_left(self) -> None:
        """Fail if a handle or memory is alive, or something was used wrongly on the way."""
        assert all(str(self.code) in error for error in self.errors)
        check_clean(self.acl)


# One fault of each kind that a step survives, with a code that the device may give there.
SURVIVED = [
    ("malloc", 207001),
    ("malloc_host", 207001),
    ("memcpy", 107000),
    ("launch", 145000),
    ("execute", 507011),
    ("sync", 507011),
    ("load", 545001),
]


@pytest.mark.parametrize("form", CALL_KINDS[:3])
@pytest.mark.parametrize(("kind", "code"), SURVIVED)
def test_a_fault_ends_the_requests_of_its_step_and_no_others(artefacts, form, kind, code):
    assert code not in DEVICE_LOST
    outcomes = set()
    for number in itertools.count(1):
        trial = Trial(artefacts(form), form, kind, number, code)
        trial.check_nothing_is_left()
        if not trial.fired:
            break
        assert not trial.opened or trial.usable, f"{kind} {number}: the engine did not go on"
        assert len(trial.failed) <= MAX_BATCH
        outcomes.add((trial.opened, bool(trial.failed)))
    assert number > 1, f"no call of kind {kind} was made"
    assert not trial.failed
    expected = {
        "load": {(False, False)},
        "malloc": {(False, False)},
        "malloc_host": {(False, False)},
    }
    if kind in expected:
        assert outcomes == expected[kind]
    else:
        assert (True, True) in outcomes


@pytest.mark.parametrize("form", CALL_KINDS)
@pytest.mark.parametrize("code", [507015, 507046, 507053, 507899])
@pytest.mark.parametrize("kind", ["execute", "sync"])
def test_a_lost_device_ends_every_request_and_the_engine(artefacts, form, kind, code):
    assert code in DEVICE_LOST
    for number in (1, 3):
        trial = Trial(artefacts(form), form, kind, number, code)
        trial.check_nothing_is_left()
        assert trial.fired
        assert trial.opened
        assert not trial.usable
        # What had ended before is right (checked in the trial); the rest has the error.
        assert trial.failed == list(range(len(PROMPTS) - len(trial.failed), len(PROMPTS)))


def resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


@pytest.mark.parametrize(
    ("form", "steps"), [(HAND_MADE, 1000), ("gears", 300), ("rows", 300), ("rows gears", 300)]
)
def test_case_11_a_thousand_steps(artefacts, form, steps):
    """Changing batch sizes, 50 aborts, 20 failed executes: bounded while it runs, nothing after."""
    failures = steps // 50
    faults = FaultPlan(execute={40 + 47 * n: 507011 for n in range(failures)})
    backend = make_backend(artefacts(form, 16, 80), self_test=False, faults=faults)
    acl = backend._acl
    chance = random.Random(0)
    requests, live, resident, aborted = [], [], [], 0
    with Engine(backend, num_pages=80, max_batch=4, max_batch_tokens=24) as engine:
        for step in range(steps):
            running = [request for request in requests if not request.finished]
            while len(running) < chance.randint(1, 6):
                prompt = [chance.randrange(VOCAB) for _ in range(chance.randint(1, 30))]
                params = SamplingParams(max_tokens=chance.randint(2, 20))
                running.append(engine.submit(prompt, params))
                requests.append(running[-1])
            if step % 20 == 10:
                chance.choice(running).cancel()
                aborted += 1
            assert engine.step()
            if step % (steps // 10) == 0:
                live.append(sum(acl.ledger.live_counts().values()))
                resident.append(resident_mib())
        assert engine.statistics().failed_steps == failures
    assert aborted == steps // 20
    assert len(set(live)) == 1, "what lives during steps has a bound of its own"
    # A leak grows in every part of the run; what the process allocates once does not.
    growth = [after - before for before, after in pairwise(resident)]
    assert statistics.median(growth) < 0.5, growth
    check_clean(acl)
