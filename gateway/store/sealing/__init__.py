"""Seals, encryption, and writes that carry sealed events."""
