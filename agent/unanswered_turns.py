"""End what a turn may have opened although its submission got no answer.

The gateway may have kept a turn whose answer was lost. Its calls do not run, and the
model is told so; but people would be asked about them, and could approve what nobody
makes, until the time of their card is over. So the turn is ended as soon as the gateway
answers, beside the run. A process that dies meanwhile leaves the card.
"""

from __future__ import annotations

import asyncio

from twokey.agent import bridge
from twokey.agent.bridge import Shell
from twokey.gateway.clock import now_s
from twokey.gateway.errors import FINAL_ERRORS, TwokeyError
from twokey.gateway.protocol.port import Gateway
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.wire import TurnRef

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0
END_FOR_S = 3600.0
"""How long the gateway is asked to end a turn."""


class UnansweredTurns:
    """Turns of one agent whose submission got no answer, by where they stand."""

    def __init__(self) -> None:
        self._ending: dict[tuple[RunRef, str], set[TurnRef]] = {}

    def moved_on(self, ref: TurnRef) -> None:
        """Leave what came before this turn: the gateway, which has it, has ended that.

        To end it again would end what waits inside the tools of this turn, too.
        """
        self._ending.pop(_place(ref), None)

    def end(self, ref: TurnRef, gateway: Gateway, shell: Shell) -> None:
        """Begin to end a turn."""
        self._ending.setdefault(_place(ref), set()).add(ref)
        shell.begin(self._ended(ref, gateway))

    async def _ended(self, ref: TurnRef, gateway: Gateway) -> None:
        pause, ends = FIRST_PAUSE_S, now_s() + END_FOR_S
        while now_s() < ends:
            # First: what was sent without an answer may still be on its way.
            await asyncio.sleep(pause)
            if ref not in self._ending.get(_place(ref), ()):
                return
            try:
                async with asyncio.timeout(bridge.PORT_TIMEOUT_S):
                    await gateway.supersede(ref)
                break
            except FINAL_ERRORS:
                break
            except (TwokeyError, OSError):
                pause = min(pause * 2, LONGEST_PAUSE_S)
        waiting = self._ending.get(_place(ref), set())
        waiting.discard(ref)
        if not waiting:
            self._ending.pop(_place(ref), None)


def _place(ref: TurnRef) -> tuple[RunRef, str]:
    return ref.run_ref, ref.ns
