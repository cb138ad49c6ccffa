"""The only room that speaks to Redis."""
