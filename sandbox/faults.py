"""Inject faults into Web API calls and into deliveries to the app."""

from dataclasses import dataclass
from enum import StrEnum

ANY = "*"


class Fault(StrEnum):
    """The effect on a call of the Web API."""

    LOST_RESPONSE = "lost_response"
    """The call takes effect, but the connection closes before the answer."""
    HTTP_500 = "http_500"
    """The call has no effect; the answer is status 500."""
    SLOW = "slow"
    """The answer is late, by the sandbox's clock."""
    RESET = "reset"
    """The call has no effect; the connection closes without an answer."""
    RATE_LIMIT = "rate_limit"
    """The call has no effect; the answer is status 429 with Retry-After."""
    REFUSE = "refuse"
    """The call has no effect; the answer is `ok: false` with the planned error."""
    MALFORMED = "malformed"
    """The call has no effect; the answer contains only `ok: true`."""
    NO_JSON = "no_json"
    """The call has no effect; the answer is an HTML page, as from a proxy."""


class DeliveryFault(StrEnum):
    """The fault in a delivery from Slack to the app."""

    DUPLICATE = "duplicate"
    """The same request is delivered twice, the second after the first's answer."""
    RETRY_HEADERS = "retry_headers"
    """The request is marked as a retry, although it is the first one."""


@dataclass(slots=True)
class PlannedFault:
    """A planned fault; `seconds` is the delay or Retry-After.

    `skip` calls succeed before it begins, and then `left` calls fail. `error` is the
    error name of a refusal.
    """

    fault: Fault
    method: str = ANY
    left: int = 1
    seconds: float = 1.0
    skip: int = 0
    error: str = "access_denied"


@dataclass(slots=True)
class PlannedDeliveryFault:
    """A planned fault of deliveries."""

    fault: DeliveryFault
    left: int = 1
    retry_num: int = 1
    retry_reason: str = "http_timeout"


class Faults:
    """Planned faults; each ends after its planned calls or deliveries."""

    def __init__(self) -> None:
        self._faults: list[PlannedFault] = []
        self._delivery_faults: list[PlannedDeliveryFault] = []

    def plan(
        self,
        fault: Fault | str,
        method: str = ANY,
        *,
        calls: int = 1,
        seconds: float = 1.0,
        after: int = 0,
        error: str = "access_denied",
    ) -> None:
        """Skip `after` calls of `method` (any by default), then fail `calls` calls."""
        planned = PlannedFault(Fault(fault), method, calls, seconds, after, error)
        self._faults.append(planned)

    def plan_delivery(
        self,
        fault: DeliveryFault | str,
        *,
        deliveries: int = 1,
        retry_num: int = 1,
        retry_reason: str = "http_timeout",
    ) -> None:
        """Apply `fault` to the next `deliveries` requests to the app."""
        fault = DeliveryFault(fault)
        planned = PlannedDeliveryFault(fault, deliveries, retry_num, retry_reason)
        self._delivery_faults.append(planned)

    def clear(self) -> None:
        """Remove all planned faults."""
        self._faults.clear()
        self._delivery_faults.clear()

    def next_fault(self, method: str) -> PlannedFault | None:
        """Return the fault for a call of this method, and count it as used."""
        for planned in self._faults:
            if planned.method in (ANY, method) and planned.skip > 0:
                # Not returned: a fault that has not begun must not hide later ones.
                planned.skip -= 1
            elif planned.method in (ANY, method):
                planned.left -= 1
                if planned.left <= 0:
                    self._faults.remove(planned)
                return planned
        return None

    def next_delivery_fault(self) -> PlannedDeliveryFault | None:
        """Return the fault for the next delivery, and count it as used."""
        if not self._delivery_faults:
            return None
        planned = self._delivery_faults[0]
        planned.left -= 1
        if planned.left <= 0:
            self._delivery_faults.pop(0)
        return planned
