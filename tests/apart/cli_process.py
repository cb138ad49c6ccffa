"""Run `keyturn` in a separate process, with the test's leases."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from keyturn.cli.main import run
from keyturn.gateway.store.store import Store
from tests.patience import be_patient

LEASE = "APART_LEASE_MS"

if __name__ == "__main__":
    # Again, where this process was not forked from one that has done so.
    be_patient(pytest.MonkeyPatch())
    defaults: Any = Store.__init__.__kwdefaults__
    defaults["lease_ms"] = int(os.environ[LEASE])
    sys.exit(run())
