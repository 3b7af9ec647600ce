"""Barrier: no rank leaves before all have entered."""
