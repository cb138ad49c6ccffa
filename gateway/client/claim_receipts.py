"""Verify the receipt of a claim that a gateway in another process granted.

With the gateway's public key, an agent's process runs no call on the word of whoever
answers at the gateway's address: the claim has to be signed, for exactly this call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from twokey.gateway.errors import NotVerified, SettingsError
from twokey.gateway.protocol.public_keys import PublicKey, parse_public_key
from twokey.gateway.protocol.receipts import read_receipt
from twokey.gateway.protocol.wire import Claimed, ClaimReply, ClaimRequest, Refused

logger = logging.getLogger(__name__)

NOT_PROVEN = "The gateway's permission could not be verified, so this did not run."


def parse_keys(texts: Iterable[str]) -> tuple[PublicKey, ...]:
    """Return the gateway's public keys, as `twokey keys list` prints them.

    Raises:
        SettingsError: when one of them is not a whole key.
    """
    if isinstance(texts, str):
        raise SettingsError("Write the gateway's public keys as a list of lines.")
    return tuple(map(parse_public_key, texts))


def verified_claim(
    reply: ClaimReply, request: ClaimRequest, keys: Sequence[PublicKey]
) -> ClaimReply:
    """Return the answer to a claim, refused where its receipt does not prove it.

    Without keys nothing is verified. The time is not compared: the claim's own lease
    does that, and a clock of the agent's machine proves nothing.
    """
    if not keys or not isinstance(reply, Claimed):
        return reply
    try:
        receipt, digest = read_receipt(reply.receipt, keys)
    except NotVerified as error:
        return _refused(request, error.reason)
    if (receipt.item, digest) != (request.item_id, reply.action_hash):
        return _refused(request, "call_differs")
    if receipt.idempotency_key != reply.idempotency_key:
        return _refused(request, "key_differs")
    return reply


def _refused(request: ClaimRequest, reason: str) -> Refused:
    logger.error("claim.unproven reason=%s item=%s", reason, request.item_id)
    return Refused(reason=NOT_PROVEN)
