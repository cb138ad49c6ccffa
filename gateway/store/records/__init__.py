"""Approvals: their stored form, how they open, change and are listed."""
