"""Redis persistence: the only package that talks to Redis."""
