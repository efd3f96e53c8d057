"""What parameter servers hold and how it is kept: shards, their replicas, leases, staleness.

    values      what the others hand to each other: operations, ledgers, messages, tensors, rows. Pure
    decisions   who holds what, who computes what, what follows from what was said. Pure
    client, server              the shells: threads, tensors, and what the decisions say is to be done
    links, shared_blocks        the shells' links to each other

A worker asks for its next update. When the staleness clock and the lease book allow it, it gets a batch and the number
of the view it was given in. It pulls every shard from its primary, computes, and pushes to every primary. A push is
acknowledged when all replicas that count have applied it; when every shard has acknowledged, the batch is counted.

One number fences everything: the view's. A loss, of a server or a worker, makes a new view, and whatever is leased
after it carries that view's number. No replica takes a message of an older view than its own, and a message of a newer
one waits until the replica is there too.
"""
