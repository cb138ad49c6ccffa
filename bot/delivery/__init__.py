"""Bring what happened into Slack: queue it, choose what is next, post and update."""
