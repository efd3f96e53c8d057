"""What a coordinator that takes over must know, and what is appended to its log when that changes. Values only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.cluster.coordinator_service import ServiceLog
from shoal.cluster.messages import Join, Post
from shoal.cluster.view import Member, View


class MembershipRecord(msgspec.Struct, frozen=True):
    """What the membership must not forget, but for the results of calls that are over, which have a file of their own.

    All of it but the posts is as large as the run has members, however long it lasts.
    """

    view: View
    most: int
    members: tuple[str, ...]  # everyone who was ever expected
    lost: tuple[str, ...]  # or left
    reference: Join
    posts: tuple[Post, ...] = ()
    servers: tuple[Member, ...] = ()
    owed: tuple[str, ...] = ()  # what the user was not told yet
    losses: int = 0


class LogBase(msgspec.Struct, frozen=True):
    """The first entry of a log: everything."""

    membership: MembershipRecord
    service: bytes | None = None


class LogChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A later entry: what has changed. Membership and service change together, or not at all."""

    outline: MembershipRecord | None = None  # without its posts
    posts: tuple[Post, ...] = ()  # new ones, and new values of old ones
    service: tuple[bytes, ...] = ()  # what its service gave as changes


class Recalled(msgspec.Struct, frozen=True):
    """What a log tells."""

    membership: MembershipRecord
    service: ServiceLog | None


_BASE = msgspec.msgpack.Decoder(LogBase)
_CHANGE = msgspec.msgpack.Decoder(LogChange)


def recall(entries: Sequence[bytes]) -> Recalled | None:
    """What these entries tell; None if there are none. Nothing counts from the first on that is none of ours."""
    try:
        base = _BASE.decode(entries[0])
    except (IndexError, msgspec.MsgspecError):
        return None
    record = base.membership
    posts = {post.name: post for post in record.posts}
    happened: list[bytes] = []
    for entry in entries[1:]:
        try:
            change = _CHANGE.decode(entry)
        except msgspec.MsgspecError:
            break
        record = change.outline or record
        posts |= {post.name: post for post in change.posts}
        happened += change.service
    record = msgspec.structs.replace(record, posts=tuple(posts.values()))
    return Recalled(record, ServiceLog(base.service, tuple(happened)) if base.service is not None else None)
