"""Deliver outbox events to Slack: queue, prioritise, post and update."""
