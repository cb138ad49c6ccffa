"""Gateway service: judge calls, hold them for approval, resume agents."""
