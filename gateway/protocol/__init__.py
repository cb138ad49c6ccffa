"""What an agent and the gateway have in common; neither imports the other."""
