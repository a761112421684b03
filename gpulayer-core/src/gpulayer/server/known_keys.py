"""Which idempotency keys may have been used before: never a wrong no.

Nearly every key is new, and asking the store for each costs a submit a tenth of its time. This is a Bloom filter of a
megabyte: with a million keys in it one new key in forty is looked up in vain. It only grows; a restart makes it anew.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

__all__ = ["KnownKeys"]

_BITS: Final = 1 << 23
_PROBES: Final = 4


class KnownKeys:
    """Until ``complete`` everything may be known. For one thread. ``bits``: the filter itself."""

    def __init__(self) -> None:
        self._is_complete = False
        self.bits = bytearray(_BITS // 8)

    def complete(self, stored: "KnownKeys") -> None:
        """Take over all keys of the store, read in another thread into an object of its own."""
        merged = int.from_bytes(self.bits, "little") | int.from_bytes(stored.bits, "little")
        self.bits[:] = merged.to_bytes(len(self.bits), "little")
        self._is_complete = True

    def add(self, owner: str, key: str) -> None:
        for bit in _places(owner, key):
            self.bits[bit >> 3] |= 1 << (bit & 7)

    def may_hold(self, owner: str, key: str) -> bool:
        return not self._is_complete or all(self.bits[bit >> 3] & 1 << (bit & 7) for bit in _places(owner, key))


def _places(owner: str, key: str) -> Iterator[int]:
    drawn = hashlib.blake2b(f"{owner}\0{key}".encode("utf-8", "surrogatepass"), digest_size=4 * _PROBES).digest()
    return (int.from_bytes(drawn[start : start + 4]) % _BITS for start in range(0, len(drawn), 4))
