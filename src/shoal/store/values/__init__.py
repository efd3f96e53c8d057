"""What the store's decisions and its shells hand to each other. Pure, and without a decision.

operations  what changes a shard, by name; and sets of batches
ledger      what a shard remembers besides its tensors
messages    what workers and replicas say to each other
tensors     what a server holds of a shard, and what travels of it: arrays in a known order
rows        the rows of large tables: which part holds which, and what they are before their first update
encoding    how a codec is used on the way to servers
"""
