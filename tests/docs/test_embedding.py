"""What docs/embedding.md shows works as it stands there."""

from __future__ import annotations

import asyncio
import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from gateway.approvals.record import Home
from gateway.embed import Twokey
from gateway.policy.load import load_policy
from gateway.store.store import Store
from tests.docs.reviewing import HEAD, approve_all
from tests.docs.test_readme import ROOT, blocks

PAGE = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
CODE = blocks("python", PAGE)


def test_the_program_runs_an_agent_to_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "policy.yml").write_text(blocks("yaml", PAGE)[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()

    with contextlib.redirect_stdout(said):
        exec(compile(CODE[0], "embedding.md", "exec"), {"__name__": "page"})  # noqa: S102 - the page's own code

    assert "Order 78377 is a desk chair for 312.50." in said.getvalue()


@pytest.mark.parametrize("is_asked", [True, False])
async def test_the_plain_node_wires_the_money_once_it_may(
    store: Store, tmp_path: Path, *, is_asked: bool
) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(CODE[1], "embedding.md", "exec"), names)  # noqa: S102 - the page's own code
    listed = "tools: {}" if is_asked else "tools: {wire_money: {tier: auto}}"
    rules = load_policy(HEAD + listed, "policy.yml")

    async with Twokey(policy=rules, url=store.conn.url, data_dir=tmp_path) as tk:
        run = asyncio.create_task(
            tk.run(
                names["graph"],
                {"to": "ada", "amount": 90.0},
                thread_id="t",
                agent="billing",
            )
        )
        if is_asked:
            await approve_all(tk, Home(agent="billing", thread="t"))
        final = await run

    assert final["said"] == "sent 90 to ada"


async def test_the_sandbox_is_a_fixture_of_pytest(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(CODE[2])
    pytester.makeini("[pytest]\nasyncio_mode = auto")

    result = pytester.runpytest_subprocess("-q")

    result.assert_outcomes(passed=1)
