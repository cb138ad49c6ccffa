"""A log says what failed and where, and quotes nobody but us."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.failures import FAILURE, described, log_failure

SECRET = "4111111111111111"


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


def test_an_error_of_ours_keeps_its_words_and_names_its_cause() -> None:
    told = described(caught(ours))

    assert told.startswith("StoreUnavailable The store does not answer. [")
    assert "; from ValueError [" in told
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
    assert record.getMessage().startswith("job.failed job=7 error=StoreUnavailable")


def test_the_record_of_a_failure_quotes_nobody_however_it_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_failure(logging.getLogger("x"), caught(provider), "job.failed job=%s", "7")

    (record,) = caplog.records
    held = getattr(record, FAILURE)
    assert SECRET not in str(vars(record))
    assert SECRET not in caplog.text
    with pytest.raises(TypeError):
        json.dumps(held)
    assert SECRET in held.text()
