"""How fast codecs are beside memcpy, on one core: the share of memcpy's speed at which they encode, add and decode.

Ours are written in numpy and ml_dtypes. Beside bf16 and int8 are programs of the backends that do the same: `jax.jit`,
torch's operations, and `torch.compile` where there is a C++ compiler. They begin with a tensor of their own and end in
the memory of the exchange (encode), or begin there and end with a tensor of their own (decode). The share of numbers
that come out as ours is told too: a program may multiply and add in one rounding.

Slices of a tenth of a second in random order, the median of the ratios of neighbours. Bytes are those of float32.
memcpy against itself is the A/A ratio.

    python bench/codecs.py [--quick] [--floats 2621440] [--programs jax torch compiled] > codecs.json
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from harness import SAME_WITHIN, Facts, Watch, report, say, significant, spread
from shoal.codecs.choice import codec_of
from shoal.codecs.rounding import BF16, INT8
from shoal.codecs.shapes import ArrayShape

SLICE, PAIRS = 0.1, 24
AGAIN = "memcpy again"
LARGEST = 127
PROGRAMS = ("jax", "torch", "compiled")
PACKAGES = ("numpy", "ml_dtypes", "jax", "torch")

Work = Callable[[], object]


class Program(NamedTuple):
    """A backend's own, of one rounding."""

    encode: Work
    decode: Work
    same: float  # share of the numbers that are ours


def speed(work: Work) -> float:
    """Calls per second, of a slice."""
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() - begun < SLICE:
        work()
        calls += 1
    return calls / (time.perf_counter() - begun)


def measured(work: Work, copy: Work, pairs: int, rng: random.Random) -> Facts:
    work()
    ratios, rates = [], []
    for _ in range(pairs):
        found = {each: speed(copy if each == "copy" else work) for each in rng.sample(["copy", "work"], 2)}
        ratios.append(found["work"] / found["copy"])
        rates.append(found["work"])
    return {"of_memcpy": spread(ratios), "ms": significant(1e3 / statistics.median(rates))}


# Ours -----------------------------------------------------------------------------------------------------


def ours(values: np.ndarray, target: np.ndarray) -> dict[str, tuple[Work, int]]:
    """By name: what to do, and the bytes that travel."""
    flat = values.reshape(-1)
    works: dict[str, tuple[Work, int]] = {}
    for rounding in (BF16, INT8):
        records = np.zeros(rounding.records(flat.size), rounding.record)
        rounding.encode(flat, records)
        one, total = records.copy(), records.copy()
        works[f"{rounding.name} encode"] = (lambda r=rounding, out=records: r.encode(flat, out), records.nbytes)
        works[f"{rounding.name} add"] = (lambda r=rounding, a=records, b=one, out=total: r.add(a, b, out), one.nbytes)
        works[f"{rounding.name} decode"] = (lambda r=rounding, out=records: r.decode(out, target), records.nbytes)
    shape = (ArrayShape("float32", values.size, values.shape),)
    for word in ("topk:0.01", "topk:0.01:int8", "lowrank:4"):
        codec = codec_of(word, "bench")
        sent, state = codec.encode([values], None)
        size = sum(array.nbytes for array in sent)
        works[f"{word} encode"] = (lambda c=codec, s=state: c.encode([values], s), size)
        works[f"{word} decode"] = (lambda c=codec, p=sent: c.decode(p, shape), size)
    return works


# The backends' ------------------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """What an exchange has of a rounding: where records lie, and what ours writes there."""

    words: np.ndarray  # bf16, as whole numbers of 2 bytes
    units: np.ndarray
    numbers: np.ndarray  # int8, a row for each record


def memory_of(flat: np.ndarray) -> Memory:
    """With our records in it. int8's rows are of whole records."""
    records = np.zeros(INT8.records(flat.size), INT8.record)
    words = np.zeros(BF16.records(flat.size), BF16.record)
    BF16.encode(flat, words)
    INT8.encode(flat, records)
    return Memory(words.view(np.uint16)[: flat.size], *INT8._parts(records))


def table_of_dithers() -> np.ndarray:
    """A record takes as many neighbours of it as it has numbers, from a place that its unit tells."""
    return np.concatenate([INT8._dithers[:, 0], INT8._dithers[-1, 1:]])


def by_jax(flat: np.ndarray) -> dict[str, Program]:
    import jax
    import jax.numpy as jnp

    table, places = jnp.asarray(table_of_dithers()), len(INT8._dithers) - 1
    rows = jnp.asarray(flat.reshape(-1, INT8.elements))
    values = jnp.asarray(flat)

    @jax.jit
    def round_bf16(values: Any) -> Any:
        return jax.lax.bitcast_convert_type(values.astype(jnp.bfloat16), jnp.uint16)

    @jax.jit
    def read_bf16(words: Any) -> Any:
        return jax.lax.bitcast_convert_type(words, jnp.bfloat16).astype(jnp.float32)

    @jax.jit
    def round_int8(rows: Any) -> Any:
        largest = jnp.abs(rows).max(axis=1)
        unit = largest / jnp.float32(LARGEST)
        factor = jnp.where(unit > 0, jnp.float32(LARGEST * (1 - 2.0**-20)) / largest, 0)
        factor = jnp.where(jnp.isfinite(factor), factor, 0)
        mixed = jax.lax.bitcast_convert_type(unit, jnp.uint32) * jnp.uint32(2654435761)
        place = (mixed ^ (mixed >> 15)) % places
        dither = table[place[:, None] + jnp.arange(rows.shape[1], dtype=jnp.uint32)]
        unfit = ~jnp.isfinite(largest)
        numbers = jnp.where(unfit[:, None], 1, jnp.rint(rows * factor[:, None] + dither)).astype(jnp.int8)
        return jnp.where(unfit, jnp.nan, unit), numbers

    @jax.jit
    def read_int8(units: Any, numbers: Any) -> Any:
        return numbers.astype(jnp.float32) * units[:, None]

    ours, mine = memory_of(flat), memory_of(flat)

    def encode_bf16() -> None:
        np.copyto(mine.words, np.asarray(round_bf16(values)))

    def encode_int8() -> None:
        units, numbers = round_int8(rows)
        np.copyto(mine.units, np.asarray(units))
        np.copyto(mine.numbers, np.asarray(numbers))

    def decode_bf16() -> None:
        jax.block_until_ready(read_bf16(ours.words))

    def decode_int8() -> None:
        jax.block_until_ready(read_int8(ours.units, ours.numbers))

    return {
        "bf16": Program(encode_bf16, decode_bf16, same(encode_bf16, ours.words, mine.words)),
        "int8": Program(encode_int8, decode_int8, same(encode_int8, ours.numbers, mine.numbers)),
    }


def by_torch(flat: np.ndarray, compiles: bool) -> dict[str, Program]:
    import torch

    torch.set_num_threads(1)
    table, places = torch.from_numpy(table_of_dithers()), len(INT8._dithers) - 1
    values = torch.from_numpy(flat)
    rows = values.reshape(-1, INT8.elements)
    neighbours = torch.arange(INT8.elements)
    ours, mine = memory_of(flat), memory_of(flat)
    read, written = (
        Memory(
            *(
                torch.from_numpy(array) if array.dtype != np.uint16 else torch.from_numpy(array.view(np.int16))
                for array in memory
            )
        )
        for memory in (ours, mine)
    )

    def round_bf16(values: Any, words: Any) -> None:
        words.view(torch.bfloat16).copy_(values)

    def read_bf16(words: Any) -> Any:
        return words.view(torch.bfloat16).float()

    def round_int8(rows: Any, units: Any, numbers: Any) -> None:
        largest = rows.abs().amax(dim=1)
        unit = largest / LARGEST
        factor = torch.where(unit > 0, LARGEST * (1 - 2.0**-20) / largest, 0.0)
        factor = torch.where(torch.isfinite(factor), factor, 0.0)
        mixed = unit.view(torch.int32).long() * 2654435761 & 0xFFFFFFFF
        place = (mixed ^ (mixed >> 15)) % places
        scaled = (rows * factor[:, None] + table[place[:, None] + neighbours]).round()
        unfit = ~torch.isfinite(largest)
        numbers.copy_(torch.where(unfit[:, None], 1.0, scaled))
        units.copy_(torch.where(unfit, torch.nan, unit))

    def read_int8(units: Any, numbers: Any) -> Any:
        return numbers * units[:, None]

    how = torch.compile if compiles else (lambda function: function)
    one, other, third, fourth = (how(function) for function in (round_bf16, read_bf16, round_int8, read_int8))

    def encode_bf16() -> None:
        one(values, written.words)

    def encode_int8() -> None:
        third(rows, written.units, written.numbers)

    return {
        "bf16": Program(encode_bf16, lambda: other(read.words), same(encode_bf16, ours.words, mine.words)),
        "int8": Program(
            encode_int8, lambda: fourth(read.units, read.numbers), same(encode_int8, ours.numbers, mine.numbers)
        ),
    }


def same(encode: Work, ours: np.ndarray, mine: np.ndarray) -> float:
    """The share of numbers that it writes like ours."""
    mine[:] = 0
    encode()
    return float((ours == mine).mean())


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    options.add_argument("--floats", type=int, default=2560 * 1024)
    options.add_argument("--pairs", type=int, default=PAIRS)
    options.add_argument("--programs", nargs="*", choices=PROGRAMS, default=list(PROGRAMS))
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--quick", action="store_true", help="4 pairs: shows that it works")
    given = options.parse_args()
    if given.quick:
        given.pairs = 4
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before the backends count cores
    os.environ["NPROC"] = "1"
    watch = Watch()
    rng = random.Random(given.seed)
    values = np.random.default_rng(0).standard_normal((given.floats // 1024, 1024)).astype(np.float32)
    flat, target = values.reshape(-1), np.empty(values.size, np.float32)

    def copy() -> None:
        np.copyto(target, flat)

    found: dict[str, Facts] = {AGAIN: measured(copy, copy, given.pairs, rng)}

    def measure(name: str, work: Work, size: int, more: Facts) -> None:
        found[name] = measured(work, copy, given.pairs, rng) | {"bytes_of_one": significant(size / flat.nbytes)} | more
        say(f"{name}: {found[name]['of_memcpy']['median']:.3f} of memcpy")

    for name, (work, size) in ours(values, np.empty_like(target)).items():
        measure(name, work, size, {})
    whole = flat[: flat.size // INT8.elements * INT8.elements]
    for by in given.programs:
        if by == "compiled" and shutil.which("g++") is None:
            continue
        programs = by_jax(whole) if by == "jax" else by_torch(whole, compiles=by == "compiled")
        how = {"jax": "jax.jit", "torch": "torch", "compiled": "torch.compile"}[by]
        for name, program in programs.items():
            size = {"bf16": flat.nbytes // 2, "int8": INT8.records(flat.size) * INT8.nbytes}[name]
            measure(f"{name} encode, {how}", program.encode, size, {"same_numbers": significant(program.same, 6)})
            measure(f"{name} decode, {how}", program.decode, size, {})
    check = found[AGAIN]["of_memcpy"]
    void = abs(check["median"] - 1) > SAME_WITHIN
    facts = {"bench": "codecs", "settings": vars(given), "megabytes": flat.nbytes / 1e6, "void": void, "found": found}
    table = [["", "of memcpy", "quartiles", "ms", "bytes of 1", "same numbers"]]
    for name, one in found.items():
        share = one["of_memcpy"]
        table.append(
            [
                name,
                f"{share['median']:.3f}",
                "{:.3f} to {:.3f}".format(*share["quartiles"]),
                f"{one['ms']:.2f}",
                f"{one.get('bytes_of_one', 1.0):.3f}",
                f"{one['same_numbers']:.4%}" if "same_numbers" in one else "",
            ]
        )
    report({**facts, **watch.facts(PACKAGES)}, table)


if __name__ == "__main__":
    main()
