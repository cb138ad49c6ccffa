"""A log names the error and its place, and quotes only our texts."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from keyturn.gateway import errors
from keyturn.gateway.errors import KeyturnError, StoreUnavailable
from keyturn.gateway.failures import FAILURE, any_failure, described, log_failure
from tests.panics import Panic

SECRET = "4111111111111111"
ROOT = Path(__file__).parents[1]
CODE = [*(ROOT / one for one in ("agent", "bot", "cli", "gateway", "receipts"))]


def provider() -> None:
    raise ValueError(f"400: cannot use {SECRET}")


def ours() -> None:
    try:
        provider()
    except ValueError as error:
        raise StoreUnavailable("The store does not answer.") from error


def caught(work: Callable[[], None]) -> Exception:
    with pytest.raises(Exception, match=r".") as raised:
        work()
    return raised.value


def test_a_foreign_error_is_told_by_its_type_and_its_places() -> None:
    told = described(caught(provider))

    assert told.startswith("ValueError [test_failures.py:")
    assert told.count("test_failures.py:") == 2
    assert SECRET not in told


def test_a_group_tells_of_everything_in_it() -> None:
    group = ExceptionGroup(SECRET, [caught(provider), KeyError(SECRET)])

    told = described(group)

    assert "from ValueError [" in told
    assert "from KeyError [" in told
    assert SECRET not in told


def test_a_failure_is_one_line_at_level_error(caplog: pytest.LogCaptureFixture) -> None:
    log_failure(logging.getLogger("x"), caught(ours), "job.failed job=%s", "7")

    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is None
    told = record.getMessage()
    assert told.startswith("job.failed job=7 error=StoreUnavailable The store does not")
    assert "; from ValueError [" in told
    assert SECRET not in told


def test_a_record_of_a_failure_quotes_nobody(caplog: pytest.LogCaptureFixture) -> None:
    log_failure(logging.getLogger("x"), caught(provider), "job.failed job=%s", "7")

    (record,) = caplog.records
    held = getattr(record, FAILURE)
    assert SECRET not in str(vars(record))
    assert SECRET not in caplog.text
    with pytest.raises(TypeError):
        json.dumps(held)
    assert SECRET in held.text()


@pytest.mark.parametrize(
    ("error", "is_survived"),
    [
        (Panic(), True),
        (BaseExceptionGroup("", [Panic(), ValueError()]), True),
        (asyncio.CancelledError(), False),
        (KeyboardInterrupt(), False),
        (BaseExceptionGroup("", [ValueError(), KeyboardInterrupt()]), False),
    ],
)
def test_panics_fail_and_exits_end(error: BaseException, *, is_survived: bool) -> None:
    def survive() -> BaseException | None:
        try:
            raise error
        except any_failure() as failure:
            return failure

    if is_survived:
        assert survive() is error
    else:
        with pytest.raises(type(error)):
            survive()


def test_whoever_logs_a_failure_and_goes_on_survives_a_panic_too() -> None:
    handlers = [
        (path.name, handler.lineno, handler)
        for folder in CODE
        for path in folder.rglob("*.py")
        if "log_failure(" in (text := path.read_text(encoding="utf-8"))
        for handler in ast.walk(ast.parse(text))
        if isinstance(handler, ast.ExceptHandler)
        if any("log_failure" in ast.unparse(one) for one in handler.body)
    ]
    narrow = [
        (name, line)
        for name, line, handler in handlers
        if handler.type and ast.unparse(handler.type) == "Exception"
    ]

    assert len(handlers) > 20
    assert narrow == [], "catch any_failure() there"


MADE: list[KeyturnError] = [
    KeyturnError("Nothing."),
    errors.BadJson("a duplicate key", "/a"),
    errors.CorruptRecord("ap_7"),
    errors.ForgedRecord("ap_7", "its seal", is_replayed=True),
    errors.LeaseLost(),
    errors.NotConfirmed(),
    errors.ThreadUnknown("shop", "t1"),
    errors.Unanswered("timeout", "ask again."),
]


def sent(error: KeyturnError) -> KeyturnError:
    """Return an error as another process of the same program gets it."""
    found = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own
    assert isinstance(found, KeyturnError)
    return found


@pytest.mark.parametrize("error", MADE, ids=lambda one: type(one).__name__)
def test_an_error_is_the_same_in_another_process(error: KeyturnError) -> None:
    found = sent(error)

    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_every_error_of_ours_can_be_sent() -> None:
    kinds = [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, KeyturnError)
    ]

    for kind in kinds:
        found = sent(kind.__new__(kind, "words"))
        assert type(found) is kind
        assert str(found) == "words"
