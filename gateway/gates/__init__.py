"""Approval gates of a graph: their base types, and how they are found."""
