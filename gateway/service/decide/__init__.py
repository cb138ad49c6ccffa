"""Record the decisions of reviewers."""
