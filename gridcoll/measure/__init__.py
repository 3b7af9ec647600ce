"""Measure the network: clusters, links, bandwidth of several flows, and the fastest algorithms."""
