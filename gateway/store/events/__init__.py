"""The outbox and its readers."""
