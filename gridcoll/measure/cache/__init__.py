"""What was measured, kept by host, cluster and link for later jobs."""
