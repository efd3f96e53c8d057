"""What the store decides: events in, decisions out. No connection, no thread, no clock; the shells carry it out.

shards      which ranges of which tensors make a shard
placement   which server holds which shard, in which role, view after view
replica     one replica of one shard: orders or follows, applies each batch once, hands over
requests    what a worker asks of servers, whatever it is: weights_read, delivery, row_reads, and saves' Gathering
worker_state   one worker's turns, updates and pauses, and the requests that go on
leases      which worker computes which batch of the epoch
staleness   whether a worker may begin its next update
director    all of that for one run: where every shard is, and who computes what next (director_messages)
saves       what servers write of a checkpoint
"""
