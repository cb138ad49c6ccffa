"""Pytest fixtures for users' own tests: a local Slack, and reviews by a person."""
