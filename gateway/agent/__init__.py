"""What runs in the agent's own process: the middleware and its friends."""
