"""A clock for how long ago something was, also where the machine was suspended."""

from __future__ import annotations

import time
from typing import Final

# Not `time.monotonic`: on Linux it stands still while the machine is suspended, and
# what was known before would pass for new afterwards. Both clocks run on while a
# process is stopped (SIGSTOP). On macOS CLOCK_MONOTONIC counts suspension.
_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Return seconds of a clock that never goes back and never stands still."""
    return time.clock_gettime(_CLOCK)
