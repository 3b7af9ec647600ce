"""Learning the network: clusters, links, what several flows carry, and which way is fastest."""
