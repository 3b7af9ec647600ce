"""Gather: the root gets a block of every rank."""
