"""What a coordinator that takes over must know: posts, and what has changed since the log was last written. Pure."""

from __future__ import annotations

import msgspec

from shoal.cluster.membership_record import LogBase, LogChange, MembershipRecord
from shoal.cluster.messages import Post


class Remembered:
    """The posts of a run, and what of all that is known is not in the coordinator's log yet."""

    def __init__(self, posts: tuple[Post, ...] = ()) -> None:
        self._posts = {post.name: post for post in posts}
        self._unwritten: dict[str, Post] = {}  # since `changes` was last asked
        self._outline: MembershipRecord | None = None  # as it was then

    @property
    def posts(self) -> tuple[Post, ...]:
        """The newest under each name."""
        return tuple(self._posts.values())

    def post(self, post: Post) -> None:
        self._posts[post.name] = self._unwritten[post.name] = post

    def record(self, outline: MembershipRecord) -> MembershipRecord:
        """With the posts, of which there may be many."""
        return msgspec.structs.replace(outline, posts=self.posts)

    def whole(self, outline: MembershipRecord, service: bytes | None) -> LogBase:
        """What a log begins with."""
        return LogBase(self.record(outline), service)

    def changes(self, outline: MembershipRecord | None, service: tuple[bytes, ...]) -> LogChange | None:
        """What has changed since this was last asked, however little; None if nothing has."""
        before, self._outline = self._outline, outline
        posts, self._unwritten = tuple(self._unwritten.values()), {}
        changed = outline if outline != before else None
        return LogChange(changed, posts, service) if changed or posts or service else None
