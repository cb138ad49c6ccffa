"""Wire protocol between agents and the gateway; neither side imports the other."""

BASE = "/v1"
"""Begin of every path of the HTTP API; a command's hook imports nothing else."""
