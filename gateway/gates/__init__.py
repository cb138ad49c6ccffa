"""Which tools of a graph are gated: what a gate is marked with, and who finds it."""
