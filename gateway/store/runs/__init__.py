"""Runs of agents: jobs, threads, leases, failed runs, and processes."""
