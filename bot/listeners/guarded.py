"""Limit how long a listener may take; turn what it raises into a sentence.

An exception that left a listener would be a 500, and Slack does not deliver an
interaction twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from twokey.bot.ingress import ANSWER_WITHIN_S, Delivery
from twokey.bot.listener_context import UserFacingError
from twokey.bot.payload import BadPayload
from twokey.bot.text_types import label
from twokey.gateway.errors import (
    CorruptRecord,
    NewerRecord,
    NotConfirmed,
    StoreUnavailable,
    Unanswered,
)
from twokey.gateway.failures import log_failure

logger = logging.getLogger(__name__)

NOT_RECORDED = label(
    "The gateway cannot keep anything right now, so nothing was recorded. Please try "
    "again in a moment."
)
NOT_CONFIRMED = label(
    "It is not confirmed that this is recorded. Please look at the card in a moment: "
    "it shows what is."
)
UNCONFIRMED = label(
    "This is recorded, but no replica of the store has confirmed it, so it may yet be "
    "lost. Please look at the card in a moment, and try again where it shows nothing."
)
CORRUPT = label(
    "The record of this approval is corrupt, so nothing was recorded and nothing "
    "of it will run. Please tell the gateway's operator; the agent can ask again."
)
NEWER = label(
    "A newer version of Twokey wrote this approval than the one that runs now, so "
    "nothing was recorded. Nothing of it is lost: it can be decided as soon as the "
    "newer version runs again. Please tell the gateway's operator."
)
BROKEN = label(
    "Something went wrong on our side, so this is not confirmed. Please look at the "
    "card: it shows what is recorded. The bot's operator finds the cause in its log."
)

T = TypeVar("T")


async def guarded(work: Callable[[], Awaitable[T]], delivery: Delivery) -> T:
    """Let a listener work; whatever goes wrong in it ends as `UserFacingError`."""
    if not delivery.is_recorded:
        raise UserFacingError(NOT_RECORDED)
    try:
        # A listener that is cut off here may have written its decision already, so the
        # sentence says "not confirmed" and never "not recorded".
        async with asyncio.timeout_at(delivery.until_s):
            return await work()
    except (UserFacingError, BadPayload):
        raise
    # Before StoreUnavailable, of which it is a kind: trying again in a moment would not
    # help, only the newer version does.
    except NewerRecord as error:
        logger.warning("listener.newer_record why=%s", error)
        raise UserFacingError(NEWER) from None
    except Unanswered as error:
        logger.warning("listener.unanswered why=%s", error)
        raise UserFacingError(NOT_CONFIRMED) from None
    except NotConfirmed:
        logger.warning("listener.unconfirmed")
        raise UserFacingError(UNCONFIRMED) from None
    except StoreUnavailable:
        logger.warning("listener.unrecorded why=store_unavailable")
        raise UserFacingError(NOT_RECORDED) from None
    except TimeoutError:
        logger.warning("listener.slow patience_s=%s", ANSWER_WITHIN_S)
        raise UserFacingError(NOT_CONFIRMED) from None
    except CorruptRecord as error:
        log_failure(logger, error, "listener.corrupt_record")
        raise UserFacingError(CORRUPT) from None
    except Exception as error:  # noqa: BLE001 - Slack needs an answer
        log_failure(logger, error, "listener.failed")
        raise UserFacingError(BROKEN) from None
