"""The gateway over HTTP, for agents in other processes."""
