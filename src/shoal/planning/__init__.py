"""Which way of training is the fastest that fits: pure, from measured facts to a ranking.

facts → candidates → predictions (a replay of each candidate's step) → ranking → words. Nothing here measures, reads a
clock, or knows a backend.
"""
