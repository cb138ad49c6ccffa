"""The Lua scripts that several stores call; see `twokey.gateway.store.script`."""

from __future__ import annotations

from twokey.gateway.store.script import Script

OPEN = Script("open", is_fenced=True)
HEARTBEAT = Script("heartbeat")
RESERVE = Script("reserve")
TOTALS = Script("totals")
FREEZE = Script("freeze")
LOAD_CONTEXT = Script("load_context")
REMEMBER = Script("remember")
ASK = Script("ask")
REQUEUE = Script("requeue")
PUT_BACK = Script("put_back")
