"""Time collectives, and simulate them with SimGrid."""
