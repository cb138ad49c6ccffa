"""Pytest fixtures for users' tests: a local Slack, and reviews by a person."""
