"""The same algorithm across machines: one durable log, folded by the server; clients that keep their state on disk."""
