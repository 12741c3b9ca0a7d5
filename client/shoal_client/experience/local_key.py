# SPDX-License-Identifier: Apache-2.0
"""Names are stored hashed under a key that never leaves the cluster: BLAKE2b in its keyed mode.

A namespace's or node's name is guessed in seconds from a plain hash. With a secret key it is not, and equal
names still meet as equal.
"""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import final

from shoal_client.experience.records import NAME_BYTES
from shoal_common.errors import InputError

KEY_BYTES = 32


@final
class LocalKey:
    """The key in a file that its owner alone may read (0600); made where there is none."""

    def __init__(self, path: Path) -> None:
        """Read or make the key.

        Raises:
            InputError: others may read the file, or it holds no key.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            self._key = _read(path)
        else:
            self._key = secrets.token_bytes(KEY_BYTES)
            with os.fdopen(descriptor, "wb") as file:
                file.write(self._key)
                file.flush()
                os.fsync(descriptor)
        self.hashed = lru_cache(maxsize=65_536)(self._hashed)

    def _hashed(self, name: str) -> bytes:
        """`NAME_BYTES` that stand for a name; the same for the same name under this key."""
        return blake2b(name.encode(), digest_size=NAME_BYTES, key=self._key).digest()

    def name(self, name: str) -> str:
        """The hash of a name as hexadecimal digits."""
        return self.hashed(name).hex()


def _read(path: Path) -> bytes:
    if path.stat().st_mode & 0o077:
        raise InputError(str(path), "mode", "others may read the key", f"run: chmod 600 {path}")
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        remedy = "restore it, or remove it: names hashed so far will then match no new ones"
        raise InputError(str(path), "key", f"has {len(key)} bytes, not {KEY_BYTES}", remedy)
    return key
