"""Bring agents back: run their threads, hand them their answers, leave none behind."""
