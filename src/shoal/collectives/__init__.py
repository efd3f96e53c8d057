"""How workers add up, share and gather: groups of a view's workers, and the tree that fixes a sum's bits."""
