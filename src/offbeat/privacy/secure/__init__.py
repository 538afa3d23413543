"""Secure aggregation without I/O: masks, tickets, and the helper who takes masks off sums."""
