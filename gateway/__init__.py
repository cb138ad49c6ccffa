"""Gateway service: evaluate calls, suspend them for approval, resume agents."""
