"""Every row of the table still names one place of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.table import TABLE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.promise)
def test_a_row_breaks_exactly_one_place(row: Mutant) -> None:
    code = (ROOT / row.path).read_text(encoding="utf-8")

    assert code.count(row.before) == 1
    assert row.before != row.after
    assert all((ROOT / each).exists() for each in row.tests.split())


def test_no_two_rows_break_the_same() -> None:
    broken = [(row.path, row.before, row.after) for row in TABLE]

    assert len({*broken}) == len(broken)
