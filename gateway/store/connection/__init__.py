"""Connections to Redis, their checks, and paged reading of lists."""
