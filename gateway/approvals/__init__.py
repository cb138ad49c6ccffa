"""Approval records and rules: pure functions without I/O or a clock."""
