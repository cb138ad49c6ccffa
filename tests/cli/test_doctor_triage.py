"""The doctor tries the configured triage, and reports a missing one."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell

POLICY = "policy: {version: 1, defaults: {needs: U0ANA}}\n"
ASKING = "policy: {version: 1, defaults: {needs: U0ANA, triage: {timeout: 1s}}}\n"
EYES = """\
class Eyes:
    async def assess(self, request):
        return None


class Blind:
    def assess(self, request):
        return None


number = 7
make = Eyes
"""


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (POLICY, ""),
        (ASKING, "✖ triage: the policy uses triage but none is configured"),
        (f"{ASKING}triage: eyes.py:make", "✔ triage: "),
        (f"{POLICY}triage: eyes.py:make", "eyes.py:make; the policy never asks it"),
        (f"{POLICY}triage: eyes.py:makes", "has no 'makes'; did you mean 'make'?"),
        (f"{POLICY}triage: eyes.py:number", "cannot be called without arguments"),
        (f"{POLICY}triage: eyes.py:Blind", "is a Blind without a coroutine 'assess'"),
        (f"{POLICY}triage: gone.py:make", "There is no file"),
    ],
)
def test_the_doctor_tries_the_triage_of_the_settings(
    shell: Shell, settings: str, found: str
) -> None:
    shell.write(EYES, "eyes.py")
    shell.write(settings)

    lines = shell("doctor", KEYTURN_REDIS_URL="redis://127.0.0.1:1/0").out.splitlines()

    told = "\n".join(line for line in lines if " triage: " in line)
    assert found in told
    assert bool(told) is bool(found)
