"""Say what a call needs before it may run; pure, no clock, no I/O."""
