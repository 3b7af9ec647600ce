"""Diagnose a job: collect facts about its hosts and links, then apply rules to them."""
