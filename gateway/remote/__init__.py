"""Run threads in a process that has nothing but the API key of a gateway."""
