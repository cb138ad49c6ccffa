"""The Slack app of Twokey: cards, modals and event listeners."""
