"""A local Slack workspace that refuses what Slack refuses."""
