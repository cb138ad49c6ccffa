"""State of the HTTP API: keys, webhook receivers."""
