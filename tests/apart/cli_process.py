"""Run `keyturn` in a separate process, with the test's leases and time limits."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from keyturn.bot import web
from keyturn.cli.main import run
from keyturn.gateway.store.connection import connection
from keyturn.gateway.store.store import Store
from tests.patience import be_patient

LEASE = "APART_LEASE_MS"
ANSWER = "APART_ANSWER_S"
"""How long the store and Slack may take for one answer."""

if __name__ == "__main__":
    # Again, where this process was not forked from one that has done so.
    be_patient(pytest.MonkeyPatch())
    defaults: Any = Store.__init__.__kwdefaults__
    defaults["lease_ms"] = int(os.environ[LEASE])
    if answer_s := float(os.environ.get(ANSWER, "0")):
        connection.CALL_S = web.TIMEOUT_S = answer_s
    sys.exit(run())
