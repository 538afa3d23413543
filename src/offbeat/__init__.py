"""Asynchronous federated learning: one definition of an algorithm, run in virtual time."""

__version__ = "0.1.0"
