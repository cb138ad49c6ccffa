"""A program's `run` waits through an outage, and raises what cannot pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.resume.recovery import Recovery
from keyturn.gateway.store.runs.stalled import RunState, StalledRun
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import AT_ONCE, RULES
from tests.resume.test_run_outages import Provider

PLACE: dict[str, Any] = {"thread_id": "t1", "agent": "shop"}
LOOK_UP = {"messages": [{"role": "user", "content": '[["look_up", {"order": "1"}]]'}]}


@pytest.fixture
async def tk(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Keyturn]:
    """Give a Keyturn that tries again at once."""
    monkeypatch.setattr("keyturn.gateway.resume.transient_retry.FIRST_PAUSE_S", 0.01)
    url = store.conn.url
    async with Keyturn(
        policy=RULES, url=url, data_dir=tmp_path, retries=AT_ONCE
    ) as one:
        yield one


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    """Give the shop's model a provider that can fail."""
    found = Provider()
    monkeypatch.setattr(sample_tools, "after_tools", found.answer)
    return found


async def kept(tk: Keyturn) -> StalledRun | None:
    """Return the stored fields of the run."""
    keys = tk.store.keys_of_tenant("default")
    run = keys.stalled_run("shop", "t1")
    return await tk.store.stalled.find(keys, run)


def words(values: dict[str, Any]) -> str:
    """Return the agent's last message."""
    return str(values["messages"][-1].text)


@pytest.mark.slow
async def test_a_run_waits_until_its_model_is_back(
    tk: Keyturn, provider: Provider
) -> None:
    provider.error = ConnectionError()
    run = asyncio.create_task(tk.run(sample_tools.graph, LOOK_UP, **PLACE))
    await provider.failed(times=6)
    provider.error = None

    assert words(await run) == "found 1"
    assert sample_tools.ledger() == ["look_up 1"]


async def test_a_wait_ends_by_its_own_time_out_and_the_run_goes_on(
    tk: Keyturn, provider: Provider
) -> None:
    provider.error = ConnectionError()
    with pytest.raises(TimeoutError):
        await tk.run(sample_tools.graph, LOOK_UP, **PLACE, timeout_s=0.2)
    await provider.failed()
    provider.error = None

    assert words(await tk.wait(sample_tools.graph, **PLACE)) == "found 1"


async def test_a_run_waits_until_its_checkpoints_are_there(tk: Keyturn) -> None:
    saver: Any = InMemorySaver()
    tries: list[int] = []
    put = saver.aput

    async def away(*args: Any, **options: Any) -> Any:
        tries.append(1)
        if len(tries) < 5:
            raise ConnectionError("the database is away")
        return await put(*args, **options)

    saver.aput = away
    graph: Any = sample_tools.graph()
    graph.checkpointer = saver

    assert words(await tk.run(graph, LOOK_UP, **PLACE)) == "found 1"
    assert sample_tools.ledger() == ["look_up 1"]


async def test_what_cannot_pass_is_raised_parked_and_run_again_without_input(
    tk: Keyturn, provider: Provider
) -> None:
    provider.error = KeyError("a bug")
    with pytest.raises(KeyError):
        await tk.run(sample_tools.graph, LOOK_UP, **PLACE)
    parked = await kept(tk)
    runner = await tk._runner(sample_tools.graph, "shop")  # pyright: ignore[reportPrivateUsage] - to be a worker of another process
    recovery = Recovery(tk.store, Runners({"shop": runner}, cast("Any", tk)._saver))
    await recovery.recover(is_only_process=False)

    assert parked
    assert parked.state is RunState.PARKED
    assert provider.calls == 1
    with pytest.raises(GraphError, match=r"given up: .*KeyError"):
        await tk.wait(sample_tools.graph, **PLACE)

    provider.error = None
    assert words(await tk.run(sample_tools.graph, **PLACE)) == "found 1"

    async def is_gone() -> bool:
        return await kept(tk) is None

    await eventually(is_gone)
