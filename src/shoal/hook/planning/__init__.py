"""What a plan is made from, measured on the model itself; and the strategy that a plan is."""
