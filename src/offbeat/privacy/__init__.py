"""What a server may learn and what a client may do: robust rules, attackers, clipping, noise and accounting."""
