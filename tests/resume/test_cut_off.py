"""Work that was cut off is taken up again, also while other work of its thread asks."""

from __future__ import annotations

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from tests.resume import sample_tools


class Dying(InMemorySaver):
    """A saver whose process dies in place of one checkpoint."""

    def __init__(self, *, after: int) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - its types are partial
        self.left = after

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        self.left -= 1
        if self.left == -1:
            raise SystemError("killed")
        return await super().aput(config, checkpoint, metadata, new_versions)


@pytest.mark.parametrize("checkpoints", range(1, 4))
async def test_results_without_their_checkpoint_are_work_that_was_cut_off(
    checkpoints: int,
) -> None:
    saver = Dying(after=checkpoints)
    runner = Runner(attached(sample_tools.graph(), saver))
    with pytest.raises(SystemError):
        await runner.start("t1", "hello", key="k")

    state = await runner.probe("t1")
    assert state.is_cut_off
    await runner.nudge("t1", key="k")

    assert (await runner.probe("t1")).final_message == "You said hello"
