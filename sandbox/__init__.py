"""A local fake Slack workspace that refuses what Slack refuses."""
