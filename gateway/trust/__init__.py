"""Keys, signatures and sealed texts: what of the store and the agent is believed."""
