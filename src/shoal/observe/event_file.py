"""Scalars in the files that TensorBoard reads: records of events, each with two checksums.

Written by hand, because what writes them elsewhere imports TensorFlow wherever that is installed, into processes that
train on another backend: seconds, and hundreds of megabytes. Both formats are small, and as old as TensorBoard.

    record: length, checksum of that, event, checksum of that      (checksums are CRC-32C, turned and shifted)
    event: as protobuf: the time, the step, and tags with a number each
"""

from __future__ import annotations

import os
import platform
import struct
import time
from collections.abc import Mapping
from pathlib import Path

_VERSION = "brain.Event:2"
_POLYNOMIAL = 0x82F63B78  # CRC-32C, lowest bit first
_MASK = 0xA282EAD8
_LONGEST_TAG = 200
# Kinds of fields in protobuf.
_NUMBER, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


class EventFile:
    """One file of events. It is opened for each that is added: nothing is held, and a reader sees it at once."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder, and writes nothing yet."""
        folder.mkdir(parents=True, exist_ok=True)
        host = platform.node().replace(os.sep, "-")
        self._path = folder / f"events.out.tfevents.{int(time.time()):010d}.{host}.{os.getpid()}.shoal"

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        begins = not self._path.exists()
        with self._path.open("ab") as file:
            if begins:
                file.write(record(_event(time.time(), _field(3, _BYTES, _VERSION.encode()))))
            file.write(record(scalars_event(scalars, step, time.time())))


def scalars_event(scalars: Mapping[str, float], step: int, at: float) -> bytes:
    values = b"".join(_field(1, _BYTES, _value(tag, number)) for tag, number in scalars.items())
    return _event(at, _field(2, _NUMBER, step), _field(5, _BYTES, values))


def record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + _checksum(length) + event + _checksum(event)


def _event(at: float, *fields: bytes) -> bytes:
    return _field(1, _DOUBLE, at) + b"".join(fields)


def _value(tag: str, number: float) -> bytes:
    return _field(1, _BYTES, tag[:_LONGEST_TAG].encode()) + _field(2, _FLOAT, number)


def _field(number: int, kind: int, value: float | int | bytes) -> bytes:
    head = _varint(number << 3 | kind)
    if isinstance(value, bytes):
        return head + _varint(len(value)) + value
    if kind == _NUMBER:
        return head + _varint(int(value))
    return head + struct.pack("<d" if kind == _DOUBLE else "<f", value)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def _table() -> tuple[int, ...]:
    found = []
    for entry in range(256):
        for _ in range(8):
            entry = (entry >> 1) ^ (_POLYNOMIAL if entry & 1 else 0)
        found.append(entry)
    return tuple(found)


_TABLE = _table()
