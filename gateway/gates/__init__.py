"""Approval gates of a graph: how they are marked, and how they are found."""
