"""Evaluate the turns of agents, and open approvals for the calls that need people."""
