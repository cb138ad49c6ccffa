"""Say what triage is: something that reads a packet and gives advice."""

from __future__ import annotations

from typing import Protocol

from twokey.gateway.triage.packet import Packet


class Triage(Protocol):
    """A second pair of eyes, usually a model, that can only ask for more.

    Nothing relies on it. `twokey.gateway.triage.advice.read_advice` reads what it
    returns; an error, a time-out or anything unreadable changes nothing.
    """

    async def advise(self, packet: Packet) -> object:
        """Return advice: an `Advice`, a mapping with its names, or JSON as text.

        It runs in the event loop in which the agent's turn is judged, which it must
        not block, is cancelled at its time-out, and sees none of the agent's run.
        Several calls are put to it at the same time.

        Args:
            packet: the call as a reviewer may see it. Its texts are untrusted.
        """
