"""The coordinator's host may die: its record is copied to other hosts, and they elect the next one."""
