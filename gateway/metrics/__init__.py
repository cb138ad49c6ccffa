"""Metrics: a fold over events, in memory of a bounded size."""
