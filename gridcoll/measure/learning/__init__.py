"""Learn from the application's own calls: which algorithm is fastest, and when links change."""
