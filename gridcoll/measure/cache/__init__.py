"""Keep measurements by host, cluster and link for later jobs."""
