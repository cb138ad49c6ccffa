"""The reviewers' side: cards, messages, Home tabs, delegations, checks."""
