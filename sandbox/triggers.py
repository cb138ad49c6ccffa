"""Issue trigger ids that expire after three seconds and open one view."""

import re
import secrets
from dataclasses import dataclass, replace

from keyturn.sandbox.api_errors import ApiError
from keyturn.sandbox.clock import Clock

LIFE_S = 3.0
FORMAT = re.compile(r"\d+\.\d+\.[0-9a-f]+")
KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Trigger:
    """The right of one interaction to open a view for its user."""

    id: str
    user: str
    issued_at: float
    from_modal: bool = False
    spent: bool = False


class Triggers:
    """Record the issued triggers and their uses.

    Source: https://docs.slack.dev/surfaces/modals#trigger_ids
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.known: dict[str, Trigger] = {}

    def issue(self, user_id: str, *, from_modal: bool = False) -> str:
        """Return a new trigger id for an interaction of this person."""
        now = self._clock.now()
        number = int(now * 1_000_000)
        trigger_id = f"{number}.{secrets.randbelow(10**9)}.{secrets.token_hex(16)}"
        self.known[trigger_id] = Trigger(trigger_id, user_id, now, from_modal)
        while len(self.known) > KEPT:
            self.known.pop(next(iter(self.known)))
        return trigger_id

    def check(self, trigger_id: object) -> Trigger:
        """Return a trigger that is still valid.

        Raises:
            ApiError: `invalid_trigger_id`, `exchanged_trigger_id` (already used) or
                `expired_trigger_id` (older than three seconds).
        """
        trigger = self.known.get(str(trigger_id))
        if trigger is None or not FORMAT.fullmatch(str(trigger_id)):
            raise ApiError("invalid_trigger_id")
        if trigger.spent:
            raise ApiError("exchanged_trigger_id")
        if self._clock.now() - trigger.issued_at > LIFE_S:
            raise ApiError("expired_trigger_id")
        return trigger

    def spend(self, trigger: Trigger) -> None:
        """Use up a trigger."""
        self.known[trigger.id] = replace(trigger, spent=True)
