"""Timing collectives honestly."""
