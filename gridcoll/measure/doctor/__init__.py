"""What a job has under it, and what of that is wrong: facts, then rules over them."""
