"""Doors for agents that Keyturn's middleware is not part of.

Each connector is a client of the gateway's protocol: it turns a foreign request into a
turn, and a decision into the foreign answer. It adds no way to decide.
"""
