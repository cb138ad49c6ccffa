"""Clients of a gateway in another process: over HTTP."""
