"""'keyturn erase' lists the approvals to erase, and erases them with --yes."""

from __future__ import annotations

from typing import NoReturn

import pytest

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.errors import ThreadUnavailable
from keyturn.gateway.service.people.erasing import Eraser
from keyturn.gateway.store.store import Store
from tests.cli.conftest import Shell
from tests.service.harness import ANA, ServiceHarness


@pytest.fixture
def ended(operator: Shell) -> str:
    """Return a rejected approval; the next one is pending."""
    found: list[str] = []

    async def reject(store: Store) -> None:
        harness = ServiceHarness(store)
        click, _ = await harness.refund()
        await harness.reviews.decide(click, Reject(reason="no"), ANA)
        await harness.refund(thread="t2")
        found.append(click.approval)

    operator.do(reject)
    return found[0]


def test_it_says_first_what_it_would_erase(operator: Shell, ended: str) -> None:
    said = operator.said("erase", ended)
    found = operator.found("erase", ended)

    assert "Would be erased: approvals: 1" in said
    assert ended in said
    assert "--yes" in said
    assert (found["approvals"], found["is_erased"]) == ([ended], False)


def test_a_person_is_erased_and_what_waits_is_kept(operator: Shell, ended: str) -> None:
    code, said, _ = operator("erase", "U0DAN", "--yes")

    # Something was not erased.
    assert code == 1
    assert "Erased: approvals: 1" in said
    assert ended in said
    assert " is kept" in said
    assert "'audit_folder'" in said
    # What the log has of it can be erased later.
    assert operator.found("erase", "U0DAN")["approvals"] == [ended]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("dan", "--yes"), "'dan' is no id"),
        (("ap_default_" + "0" * 32,), "has no approval 'ap_default_0"),
        (("ap_default_" + "0" * 32, "--yes"), "has no approval 'ap_default_0"),
    ],
)
def test_what_never_was_is_not_said_to_be_erased(
    operator: Shell, words: tuple[str, ...], why: str
) -> None:
    told = operator.refused("erase", *words)

    assert why in told
    assert "nothing was erased" in told.lower()


def test_a_person_of_whom_nothing_is_kept(operator: Shell) -> None:
    assert "Nothing was found" in operator.said("erase", "U0NOBODY")


def test_what_was_erased_can_be_named_again(operator: Shell, ended: str) -> None:
    operator("erase", ended, "--yes")

    said = operator.said("erase", ended)
    row = operator.found("erase", ended)

    assert f"{ended}, of which only audit entries are left" in said
    assert row["approvals"] == row["gone"] == [ended]


def test_files_that_another_process_writes_are_not_said_to_be_erased(
    operator: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(*_: object, **__: object) -> NoReturn:
        raise ThreadUnavailable("Another process runs this thread right now.")

    monkeypatch.setattr(Eraser, "erase", busy)

    told = operator.refused("erase", "U0DAN", "--yes")

    assert "the erasure is incomplete" in told
    assert "15 seconds" in told
