"""The Lua scripts that several stores call; see `gateway.store.script`."""

from __future__ import annotations

from gateway.store.script import Script

OPEN = Script("open", is_fenced=True)
DECIDE = Script("decide")
EXPIRE = Script("expire")
SUPERSEDE = Script("supersede", is_fenced=True)
CLAIM = Script("claim", is_fenced=True)
FINISH = Script("finish")
HEARTBEAT = Script("heartbeat")
RESERVE = Script("reserve")
TOTALS = Script("totals")
FREEZE = Script("freeze")
STANDING = Script("standing")
RING = Script("ring")
RETIME = Script("retime")
NOTE = Script("note")
PUT_ASIDE = Script("put_aside")
REMEMBER = Script("remember")
ASK = Script("ask")
REQUEUE = Script("requeue")
PUT_BACK = Script("put_back")
