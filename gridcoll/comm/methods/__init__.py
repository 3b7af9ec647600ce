"""The collectives as users call them: arguments in, plan or native call out."""
