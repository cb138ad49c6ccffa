"""Let agents claim, run and finish their calls, and end overdue ones."""
