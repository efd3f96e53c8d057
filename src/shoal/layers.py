"""Keras layers that know of the run that they are trained in."""

from __future__ import annotations

from shoal import session
from shoal.hook.tables.sharded_embedding import ShardedEmbedding

__all__ = ["ShardedEmbedding"]

session.current()  # they mean something only where keras is hooked
