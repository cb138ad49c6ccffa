"""One gesture of a person a file; `register` is its only public name."""
