"""Benchmarks of the figures in the README, as ratios within one run."""
