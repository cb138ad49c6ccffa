"""For all ways to share a run, executions equal approvals, and messages equal records.

The short form plays a part of the matrix, a deep run all of it.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from keyturn.gateway.store.store import Store
from tests.conformance.playing import play
from tests.conformance.scenes import Cell, Choice, Failure
from tests.conformance.topologies import TOPOLOGIES
from tests.levels import is_deep

CELLS = [Cell(*one) for one in product(TOPOLOGIES, Choice, Failure)]


def few() -> list[Cell]:
    """Return an edit in every topology, and every choice and failure somewhere."""
    mixed = [
        Cell(name, [*Choice][place % len(Choice)], [*Failure][place % len(Failure)])
        for place, name in enumerate(TOPOLOGIES)
    ]
    edits = [Cell(name, Choice.EDIT, Failure.NONE) for name in TOPOLOGIES]
    return [*dict.fromkeys([*mixed, *edits])]


@pytest.mark.timeout(3000)
async def test_every_cell_is_without_a_difference(store: Store, tmp_path: Path) -> None:
    cells = CELLS if is_deep() else few()

    found = await play(cells, store.conn.url, tmp_path)

    other = {str(cell): told for cell, told in found.items() if told}
    lines = [f"{cell}: {one}" for cell, told in other.items() for one in told]
    assert not other, "\n".join(lines)
    assert {*found} == {*cells}
