"""The Slack side of Twokey: cards, modals, clicks."""
