"""What a machine can do and what to do on it: the decisions of specification 002."""
