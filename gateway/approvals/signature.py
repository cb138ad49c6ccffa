"""The bot's signature of a decision, as a record keeps it."""

from __future__ import annotations

from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.verbs import Verb


class Signature(Record):
    """A signature, and what was signed that the decision itself does not hold.

    Attributes:
        key: id of the key, a hint which one to try.
        sig: the signature, as base64.
        verb: what the person said; None: what they found out about an execution.
        version: of the card that they saw.
        seen: hash of the call that they saw, where it is another one than they decided
            for: they changed it.
        roles: that they held.
        request: digest of the Slack request in which they said it.
        display: digest of the blocks that they saw, where it is known.
        policy: digest of the policy that was asked.
    """

    key: str
    sig: str
    verb: Verb | None = None
    version: int
    seen: str = ""
    roles: tuple[str, ...] = ()
    request: str = ""
    display: str = ""
    policy: str = ""
