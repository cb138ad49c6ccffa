"""Use cases of the gateway: for agents, reviewers and the periodic sweep."""
