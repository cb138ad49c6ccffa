"""Stored facts that limit new calls: freezes, windows, load, precedents."""
