"""Be `twokey` in a process of its own, with leases that end soon."""

from __future__ import annotations

import sys
from typing import Any

from twokey.cli.main import run
from twokey.gateway.store.store import Store

LEASE_MS = 1500

if __name__ == "__main__":
    defaults: Any = Store.__init__.__kwdefaults__
    defaults["lease_ms"] = LEASE_MS
    sys.exit(run())
