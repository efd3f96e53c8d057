"""From what a user asked for to a codec."""

from __future__ import annotations

from shoal.codecs.codec import AS_THEY_ARE, AbstractCodec
from shoal.codecs.rounded import Rounded
from shoal.codecs.rounding import BF16, INT8
from shoal.codecs.words import check_word
from shoal.errors import UsageError


def codec_of(compress: object, who: str) -> AbstractCodec:
    """The codec that `who` (a strategy, or an option) was given. UsageError if that is none."""
    if compress is None:
        return AS_THEY_ARE
    if isinstance(compress, AbstractCodec):
        return compress
    if not isinstance(compress, str):
        raise UsageError(f'{who}(compress={compress!r}): expected a codec or its name, such as "bf16".')
    check_word(compress, f"{who}(compress={compress!r})")
    return Rounded({rounding.name: rounding for rounding in (BF16, INT8)}[compress])
