"""Mutants of the life of a request at its agent. Unit tests find them."""

from __future__ import annotations

from lab.mutants.mutant import Mutant

_AGENT = "sas/actors/agent.py"
_CALLS = "sas/domain/calls.py"
_TESTS = (
    "tests/unit/test_domain_calls.py",
    "tests/unit/test_actors_waiting.py",
    "tests/unit/test_actors_probes.py",
    "tests/unit/test_actors_longsteps.py",
    "tests/unit/test_actors_agent.py",
    "tests/unit/test_outages_of_one_dependency.py",
)

CALLS = (
    Mutant(
        name="a step waited although a call went out",
        path=_CALLS,
        old="CallMove(_S.TRIED, _E.TIME_OVER, _S.CUT_OFF)",
        new="CallMove(_S.TRIED, _E.TIME_OVER, _S.NOT_BEGUN)",
        tests=_TESTS,
    ),
    Mutant(
        name="an agent is silent although no call went out",
        path=_CALLS,
        old="CallMove(_S.WAITING, _E.TIME_OVER, _S.NOT_BEGUN)",
        new="CallMove(_S.WAITING, _E.TIME_OVER, _S.CUT_OFF)",
        tests=_TESTS,
    ),
    Mutant(
        name="a request that is put back forgets its call",
        path=_CALLS,
        old="CallMove(_S.TRIED, _E.PUT_BACK, _S.TRIED)",
        new="CallMove(_S.TRIED, _E.PUT_BACK, _S.WAITING)",
        tests=_TESTS,
    ),
    Mutant(
        name="a redelivery hides no call",
        path=_CALLS,
        old="CallMove(_S.WAITING, _E.REDELIVERED, _S.TRIED)",
        new="CallMove(_S.WAITING, _E.REDELIVERED, _S.WAITING)",
        tests=_TESTS,
    ),
    Mutant(
        name="a probe that its service failed counts as a call",
        path=_CALLS,
        old="CallMove(_S.PROBING, _E.SERVICE_AWAY, _S.WAITING",
        new="CallMove(_S.PROBING, _E.SERVICE_AWAY, _S.TRIED",
        tests=_TESTS,
    ),
    Mutant(
        name="a call cut off by its function is forgotten",
        path=_AGENT,
        old="ending = Ending(CallEvent.ENDED, CallEnd.UNKNOWN)\n"
        "                raise _CutOffError(now",
        new="ending = Ending(CallEvent.SERVICE_AWAY, CallEnd.UNKNOWN)\n"
        "                call.state = CallState.PROBING\n"
        "                raise _CutOffError(now",
        tests=_TESTS,
    ),
)
