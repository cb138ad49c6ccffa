"""Risk triage by a model: its opinion can raise a call's tier, never lower it."""
