"""Keys, signatures and sealed texts: the basis of trust in the store and in agents."""
