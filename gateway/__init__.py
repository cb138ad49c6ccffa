"""Gateway service: evaluate calls, hold them for approval, resume agents."""
