"""Queues, delegations, freezes, failed runs and the erasure of personal data."""
