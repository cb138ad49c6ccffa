"""The doctor tries the configured triage, and reports a missing one."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.cli.main import run

NOWHERE = {"KEYTURN_REDIS_URL": "redis://127.0.0.1:1/0"}
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


def told(folder: Path, settings: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the doctor's output about triage."""
    (folder / "eyes.py").write_text(EYES)
    (folder / "keyturn.yml").write_text(settings)
    capsys.readouterr()

    run(["--config", str(folder / "keyturn.yml"), "doctor"], NOWHERE)

    lines = capsys.readouterr().out.splitlines()
    return "\n".join(line for line in lines if " triage: " in line)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: str, found: str
) -> None:
    assert found in told(tmp_path, settings, capsys)


def test_the_doctor_is_silent_where_nobody_asks_for_triage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(tmp_path, POLICY, capsys) == ""
