"""A tool's own process refuses every call that has no receipt."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from keyturn.gateway.errors import NotVerified
from keyturn.receipts import SqliteLedger, Verifier
from tests.receipts.sample_receipts import ARGS, AUDIENCE, KEY, receipt, signed

FRESH = object()
"""Stands for a receipt that is valid when the test runs."""


def fresh(jti: str = "0123456789abcdef" * 2, **changes: object) -> str:
    """Return a receipt that is valid now."""
    now = int(time.time())  # noqa: TID251 - as the verifier asks
    times = {"iat": now, "nbf": now, "exp": now + 900}
    return signed(receipt(jti=jti, **times, **changes))


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    return Verifier(
        audience=AUDIENCE,
        keys=[KEY.public.text],
        ledger=SqliteLedger(tmp_path / "used.db"),
    )


def test_a_guarded_function_runs_with_its_receipt_and_once(verifier: Verifier) -> None:
    ran: list[str] = []

    @verifier.guarded
    def process_refund(order_id: str, amount: str) -> str:
        ran.append(f"{order_id} {amount}")
        return "done"

    text = fresh()

    assert process_refund(**ARGS, receipt=text) == "done"
    with pytest.raises(NotVerified, match="used"):
        process_refund(**ARGS, receipt=text)
    assert ran == ["A-1042 120.00"]


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), ARGS, "missing"),
        ((), {**ARGS, "receipt": None}, "missing"),
        ((), {**ARGS, "receipt": b"x"}, "missing"),
        ((), {**ARGS, "receipt": "yes"}, "malformed"),
        (("A-1042", "120.00"), {"receipt": FRESH}, "call_differs"),
        ((), {"order_id": "A-1042", "receipt": FRESH}, "call_differs"),
        ((), {**ARGS, "x": object(), "receipt": FRESH}, "call_differs"),
        ((), {**ARGS, "amount": "1", "receipt": FRESH}, "call_differs"),
    ],
)
def test_a_guarded_function_does_not_run_otherwise(
    verifier: Verifier, args: tuple[str, ...], kwargs: dict[str, object], why: str
) -> None:
    ran: list[object] = []

    @verifier.guarded
    def process_refund(**args: object) -> None:
        ran.append(args)

    given = {
        name: fresh() if value is FRESH else value for name, value in kwargs.items()
    }
    with pytest.raises(NotVerified, match=why):
        process_refund(*args, **given)
    assert ran == []


def test_of_many_at_once_one_uses_a_receipt(tmp_path: Path) -> None:
    path = tmp_path / "used.db"
    ledgers = [SqliteLedger(path) for _ in range(8)]
    start = threading.Barrier(len(ledgers))
    won: list[bool] = []

    def use(ledger: SqliteLedger) -> None:
        start.wait()
        won.append(ledger.use("a" * 32, 2**40))

    threads = [threading.Thread(target=use, args=(one,)) for one in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(won) == [False] * 7 + [True]
    # And it is remembered by a process that starts later.
    assert SqliteLedger(path).use("a" * 32, 2**40) is False


def test_a_ledger_that_cannot_record_lets_nothing_run(tmp_path: Path) -> None:
    path = tmp_path / "used.db"
    ledger = SqliteLedger(path)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE used_receipts")

    with pytest.raises(NotVerified, match="ledger_unavailable"):
        ledger.use("a" * 32, 2**40)


def test_uses_are_dropped_after_their_receipts_have_ended(tmp_path: Path) -> None:
    path = tmp_path / "used.db"
    ledger = SqliteLedger(path)
    assert ledger.use("a" * 32, 1000)
    assert ledger.use("b" * 32, 2**40)

    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT jti FROM used_receipts").fetchall()

    assert rows == [("b" * 32,)]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_guarded_function_runs_the_arguments_that_were_verified(
    verifier: Verifier, monkeypatch: pytest.MonkeyPatch, *, is_async: bool
) -> None:
    ran: list[str] = []
    payees = [{"names": ["ada"]}]

    def verify(*_: object, **__: object) -> None:
        payees[0]["names"].append("eve")
        payees.append({"names": ["eve"]})

    monkeypatch.setattr(verifier, "verify", verify)

    @verifier.guarded
    def pay(payees: list[dict[str, list[str]]]) -> None:
        ran.extend(name for one in payees for name in one["names"])

    @verifier.guarded
    async def pay_soon(payees: list[dict[str, list[str]]]) -> None:
        ran.extend(name for one in payees for name in one["names"])

    await pay_soon(payees=payees) if is_async else pay(payees=payees)

    assert ran == ["ada"]
