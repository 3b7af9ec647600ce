"""All-to-all: every rank has a block for every rank."""
