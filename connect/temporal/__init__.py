"""Calls of Temporal workflows that people approve.

The workflow waits for people without a running activity or connection. This package
imports only the workflow's part; the worker needs `keyturn.connect.temporal.plugin`.
"""

from __future__ import annotations

from keyturn.connect.temporal.gated import Call, Carry, Gated, Held, Outcome

__all__ = ["Call", "Carry", "Gated", "Held", "Outcome"]
