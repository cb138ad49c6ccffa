"""The gateway: judge an agent's calls, hold them for people, bring the agent back."""
