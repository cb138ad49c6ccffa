"""Verify the receipt of a claim that a gateway in another process granted.

With the gateway's public key, an agent's process takes no claim on the word of whoever
answers at the gateway's address: it has to be signed, for exactly this call, and for
one attempt. Calls of tier ``auto`` run without a claim, so nothing here is about them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from twokey.gateway.arguments import is_a, is_texts, require
from twokey.gateway.errors import NotVerified
from twokey.gateway.protocol.public_keys import PublicKey, parse_public_key
from twokey.gateway.protocol.receipts import (
    SKEW_S,
    Receipt,
    check_time,
    read_receipt,
)
from twokey.gateway.protocol.wire import Claimed, ClaimReply, ClaimRequest, Refused

logger = logging.getLogger(__name__)

NOT_PROVEN = "The gateway's permission could not be verified, so this did not run."
OUT_OF_TIME = (
    "The gateway's permission is out of its time, by the clock of this machine, so "
    "this did not run."
)


def parse_keys(texts: Iterable[str]) -> tuple[PublicKey, ...]:
    """Return the gateway's public keys, as `twokey keys list` prints them.

    Raises:
        SettingsError: when one of them is not a whole key.
    """
    return tuple(map(parse_public_key, key_lines(texts)))


def key_lines(texts: Iterable[str]) -> tuple[str, ...]:
    """Return lines of public keys.

    Raises:
        SettingsError: when it is one line, and no list of them.
    """
    needed = "give lines of `twokey keys list`, the gateway's public keys, as a list"
    is_one = isinstance(texts, str | bytes)
    require(is_a(texts, Iterable) and not is_one, "receipt_keys", texts, needed)
    lines = tuple(texts)
    require(is_texts(lines), "receipt_keys", lines, needed)
    return lines


class ClaimReceipts:
    """Verifies the claims that one process is granted.

    Args:
        keys: the gateway's public keys; without any, nothing is verified.

    Raises:
        SettingsError: when one of them is not a whole key.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = parse_keys(keys)
        self._used = dict[tuple[str, int], tuple[str, float]]()
        # Event loops of several threads share one gateway.
        self._lock = threading.Lock()

    def verified(
        self, reply: ClaimReply, request: ClaimRequest, now_s: float
    ) -> ClaimReply:
        """Return the answer to a claim, refused where its receipt does not prove it.

        The audience is not compared: it names who runs the effect, which may be a
        server behind the tool.

        Args:
            reply: of whoever answered.
            request: the claim that was asked for.
            now_s: seconds since 1970.
        """
        if not self._keys or not isinstance(reply, Claimed):
            return reply
        try:
            receipt, digest = read_receipt(reply.receipt, self._keys)
            check_time(receipt, now_s)
        except NotVerified as error:
            is_late = error.reason in {"not_yet", "expired"}
            return _refused(
                request, error.reason, OUT_OF_TIME if is_late else NOT_PROVEN
            )
        differs = {
            "call_differs": (receipt.item, digest)
            != (request.item_id, reply.action_hash),
            "key_differs": receipt.idempotency_key != reply.idempotency_key,
            "attempt_differs": receipt.attempt != reply.fence,
        }
        for reason, is_so in differs.items():
            if is_so:
                return _refused(request, reason)
        if not self._is_first_use(receipt, request.owner, now_s):
            return _refused(request, "used")
        return reply

    def _is_first_use(self, receipt: Receipt, owner: str, now_s: float) -> bool:
        """Return whether no other attempt has used a receipt; remember who does."""
        with self._lock:
            # In about the order of their ends, as a receipt lives for a fixed time.
            while self._used:
                oldest, (_, ends_s) = next(iter(self._used.items()))
                if now_s < ends_s:
                    break
                del self._used[oldest]
            # The same attempt may have lost the first answer. A claim that was given
            # back has the same id at the next attempt.
            claim = (receipt.jti, receipt.attempt)
            user, _ = self._used.setdefault(claim, (owner, receipt.exp + SKEW_S))
        return user == owner


def _refused(request: ClaimRequest, reason: str, told: str = NOT_PROVEN) -> Refused:
    logger.error("claim.unproven reason=%s item=%s", reason, request.item_id)
    return Refused(reason=told)
