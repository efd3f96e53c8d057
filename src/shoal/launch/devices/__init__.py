"""The accelerators of a host and who gets which: `inventory` and `assignment` are pure, `reading` asks the host."""
