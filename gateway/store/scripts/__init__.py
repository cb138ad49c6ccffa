"""Lua scripts, and the leases that fence them."""
