"""State of the HTTP API: keys, kept answers, webhook receivers."""
