"""Into how many pieces batches are cut where nobody has said it: more for unequal workers, as long as that pays. Pure.

More pieces divide the work better, and each has a price of its own, which nobody knows beforehand: in a small network
sixteen pieces can take several times as long as two. So they are tried: if the slowest worker's steps do not get
shorter, half as many are, and so on down to what there was, which then stays among these members.

A value that all members hold alike, from the notes that all have; a newcomer gets it from any of them.
"""

from __future__ import annotations

import msgspec

from shoal.strategies.balance import Balance, median, suggest_pieces

EVERY = 20  # steps between two looks
WINDOW = 11  # steps that are compared: the last ones before a look, when shares have settled
WORTHWHILE = 0.75  # the part of the workers' summed speeds that is used: below it, more pieces are worth a trial
MOST = 8  # pieces per worker
PAYS = 0.95  # steps must take less than this part of what they took before


class PieceChoice(msgspec.Struct, frozen=True):
    """What is known of steps with the present number of pieces, and with fewer, if more are on trial."""

    members: tuple[str, ...] = ()
    recent: tuple[float, ...] = ()  # seconds per sample of the last steps
    fewer: int = 0  # pieces before the trial; 0: none is going on
    before: float = 0.0  # seconds per sample with them
    is_over: bool = False  # more do not pay

    def observe(self, members: tuple[str, ...], seconds: tuple[float, ...], size: int) -> PieceChoice:
        """What is known after a committed step of `size` samples. `seconds`: how long each rank's last whole step was,
        its exchange included; 0 where a rank does not know it yet, and then nothing is learnt from it.
        """
        known = self if members == self.members else PieceChoice(members)
        if not all(took > 0.0 for took in seconds):
            return known
        recent = (*known.recent, max(seconds) / size)[-WINDOW:]
        return msgspec.structs.replace(known, recent=recent)

    def look(self, balance: Balance, pieces: int, size: int) -> tuple[int, PieceChoice]:
        """The number of pieces from now on."""
        if len(self.recent) < WINDOW or len(self.members) == 1:
            return pieces, self
        now = median(self.recent)
        if self.fewer and now >= PAYS * self.before:
            if pieces // 2 > self.fewer:
                return pieces // 2, PieceChoice(self.members, fewer=self.fewer, before=self.before)
            return self.fewer, PieceChoice(self.members, is_over=True)
        known = PieceChoice(self.members, self.recent, is_over=self.is_over)
        if known.is_over or balance.efficiency(pieces, self.members, size) > WORTHWHILE:
            return pieces, known
        more = suggest_pieces(balance, pieces, self.members, size, MOST * len(self.members))
        if more == pieces:
            return pieces, known
        return more, PieceChoice(self.members, fewer=pieces, before=now)
