"""Policy engine: decide what a call needs before it may run; no clock, no I/O."""
