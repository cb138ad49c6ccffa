"""Break what windows count, and how long."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SUBMITTING = "gateway/service/submitting.py"
REQUESTS = "tests/service/test_request_windows.py"

TOTALS_TABLE = (
    Mutant(
        "requests: one that was refused unasked counts",
        SUBMITTING,
        "counted=[*self._uses(VerdictKind.RUN), *requests],",
        "counted=self._uses(VerdictKind.RUN),",
        REQUESTS,
    ),
    Mutant(
        "requests: they are not given back",
        "gateway/policy/windows.py",
        'is_request=rule.counts == "requests",',
        "is_request=False,",
        REQUESTS,
    ),
    Mutant(
        "requests: each keeps its place",
        "gateway/service/measuring.py",
        "if before is not None:",
        "if False:",
        REQUESTS,
    ),
    Mutant(
        "requests: two at once see each other",
        SUBMITTING,
        "[one.reserved for one in measured]",
        "[one.uses for one in measured]",
        REQUESTS,
    ),
)
