"""Measure what the README claims, as ratios within one run."""
