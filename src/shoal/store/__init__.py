"""What parameter servers hold and how it is kept: shards, their replicas, leases, staleness. Pure decisions.

    shards      which ranges of which tensors make a shard
    placement   which server holds which shard, in which role, view after view
    replica     one replica of one shard: orders or follows, applies each batch once, hands over
    update      one update of one worker: from its lease to the last acknowledgement
    leases      which worker computes which batch of the epoch
    staleness   whether a worker may begin its next update
    director    all of that for one run: where every shard is, and who computes what next
    rows        the rows of large tables: which part holds which, and what they are before their first update
    look        rows that a worker reads beside training
    delivery    one update of synchronous training
    saves       what servers write of a checkpoint
    codec       how gradients travel in another form than they have
    messages, letters   what workers, replicas and the director say to each other
    batches, ledger     the values that they share
    client, server      the shells: threads, links to each other (links, chutes) and tensors

A worker asks for its next update. When the staleness clock and the lease book allow it, it gets a batch and the number
of the view it was given in. It pulls every shard from its primary, computes, and pushes to every primary. A push is
acknowledged when all replicas that count have applied it; when every shard has acknowledged, the batch is counted.

One number fences everything: the view's. A loss, of a server or a worker, makes a new view, and whatever is leased
after it carries that view's number. No replica takes a message of an older view than its own, and a message of a newer
one waits until the replica is there too.
"""
