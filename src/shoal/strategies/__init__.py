"""How gradients become weights. Today: synchronous all-reduce."""
