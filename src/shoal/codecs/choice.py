"""From what a user asked for to a codec."""

from __future__ import annotations

from shoal.codecs.codec import AS_THEY_ARE, AbstractCodec, AsTheyAre
from shoal.codecs.feedback import ErrorFeedback
from shoal.codecs.lossy import AbstractLossy, LowRank, TopK
from shoal.codecs.rounded import Rounded
from shoal.codecs.rounding import BF16, INT8
from shoal.codecs.words import AUTO, parse_word
from shoal.errors import UsageError

_ROUNDED = {rounding.name: rounding for rounding in (BF16, INT8)}


def codec_of(compress: object, who: str) -> AbstractCodec:
    """The codec that `who` (a strategy, or an option) was given. UsageError if that is none."""
    if compress is None:
        return AS_THEY_ARE
    if isinstance(compress, AbstractCodec):
        return compress
    if isinstance(compress, AbstractLossy):
        return ErrorFeedback(compress)  # what it leaves out must come with the next
    if not isinstance(compress, str):
        raise UsageError(f'{who}(compress={compress!r}): expected a codec or its name, such as "bf16".')
    word = parse_word(compress, f"{who}(compress={compress!r})")
    if word.kind == AUTO:
        return AsTheyAre(auto=True)
    if word.kind in _ROUNDED:
        return Rounded(_ROUNDED[word.kind])
    if word.kind == "topk":
        return ErrorFeedback(TopK(word.number, word.values))
    return ErrorFeedback(LowRank(int(word.number)))
