"""The use-cases: what agents, reviewers and the clock ask of the gateway."""
