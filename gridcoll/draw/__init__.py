"""Pictures of grids, plans and models."""
