# SPDX-License-Identifier: Apache-2.0
import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shoal_common.errors import InputError, LedgerCorrupt
from shoal_common.hashchain import GENESIS, HashChain


def chain_of(path: Path, count: int) -> HashChain:
    chain = HashChain(path)
    for number in range(count):
        chain.append(f"k{number}", {"n": number, "x": 0.1 * number})
    return chain


def test_a_missing_file_is_an_empty_chain_and_is_not_created(tmp_path: Path) -> None:
    chain = HashChain(tmp_path / "a" / "chain")
    assert chain.records == ()
    assert chain.head == GENESIS
    assert not (tmp_path / "a").exists()


def test_the_format_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "chain"
    record = HashChain(path).append("k", {"b": 1, "a": "é"})
    content = f'{{"body":{{"a":"\\u00e9","b":1}},"key":"k","previous_hash":"{GENESIS}"}}'
    assert record.hash == hashlib.sha256(content.encode()).hexdigest()
    line = path.read_text()
    assert line.endswith("\n")
    assert json.loads(line) == vars(record)


def test_reopening_gives_the_same_records(tmp_path: Path) -> None:
    chain = chain_of(tmp_path / "deep" / "er" / "chain", 3)
    again = HashChain(chain.path)
    assert again.records == chain.records
    assert again.head == chain.head
    assert again.contains(chain.records[0].hash)
    assert again.contains(GENESIS)
    assert not again.contains("f" * 64)


def test_an_append_is_idempotent_and_a_conflict_is_refused(tmp_path: Path) -> None:
    chain = chain_of(tmp_path / "chain", 2)
    content = chain.path.read_bytes()
    assert chain.append("k1", {"n": 1, "x": 0.1}) == chain.records[1]
    assert chain.path.read_bytes() == content
    with pytest.raises(LedgerCorrupt, match="k1"):
        chain.append("k1", {"n": 2, "x": 0.1})
    assert chain.path.read_bytes() == content


def test_two_writers_see_each_other(tmp_path: Path) -> None:
    first, second = HashChain(tmp_path / "chain"), HashChain(tmp_path / "chain")
    first.append("a", {})
    second.append("b", {})
    assert first.append("b", {}) == second.records[1]
    assert [record.key for record in HashChain(first.path).records] == ["a", "b"]


def test_threads_with_chains_of_their_own_lose_nothing(tmp_path: Path) -> None:
    def work(name: str) -> None:
        chain = HashChain(tmp_path / "chain")
        for number in range(10):
            chain.append(f"{name}{number}", {})

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(HashChain(tmp_path / "chain").records) == 30


def test_a_line_feed_that_is_missing_is_put_back(tmp_path: Path) -> None:
    chain = chain_of(tmp_path / "chain", 2)
    chain.path.write_bytes(chain.path.read_bytes()[:-1])
    again = HashChain(chain.path)
    assert again.records == chain.records
    again.append("k2", {})
    assert len(HashChain(chain.path).records) == 3


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(tmp_path / "chain", 2)
    content = chain.path.read_bytes()
    real = os.pwrite

    def half(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return real(descriptor, data[: len(data) - 50], offset)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(OSError, match="No space"):
        chain.append("k2", {})
    assert chain.path.read_bytes() == content
    monkeypatch.undo()
    chain.append("k2", {})
    assert len(HashChain(chain.path).records) == 3


def test_what_no_append_writes_is_refused(tmp_path: Path) -> None:
    chain = chain_of(tmp_path / "chain", 2)
    lines = chain.path.read_bytes().splitlines(keepends=True)
    for content in (
        b"\n" + lines[0],
        lines[1],
        lines[0] + lines[0],
        lines[0] + lines[1] + b"\0\0",
        lines[0] + b"hello",
        lines[0] + lines[1].replace(b'":', b'": ', 1),
        b"\xff\xfe",
        b"[]\n",
        b"{}\n",
        b"\x00" * 40 + b"\n",
    ):
        chain.path.write_bytes(content)
        with pytest.raises(LedgerCorrupt):
            HashChain(chain.path)


def test_a_folder_is_not_a_chain(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        HashChain(tmp_path)


WRITER = """
import sys
from pathlib import Path
from shoal_common.hashchain import HashChain
chain = HashChain(Path(sys.argv[1]))
for number in range(len(chain.records), 100_000):
    chain.append(str(number), {"n": number})
    print(number, flush=True)
"""


def test_kill_9_loses_no_acknowledged_record(tmp_path: Path) -> None:
    path = tmp_path / "chain"
    for attempt in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(3 + 7 * attempt):
                process.stdout.readline()
            process.kill()
            acknowledged = process.stdout.read().split()
        records = HashChain(path).records
        assert [record.key for record in records] == [str(number) for number in range(len(records))]
        if acknowledged:
            assert len(records) - 1 - int(acknowledged[-1]) in (0, 1)


def test_importing_it_brings_only_errors() -> None:
    code = (
        "import sys, shoal_common.hashchain\n"
        "print(sorted(m for m in sys.modules if m.startswith(('shoal_common.', 'numpy', 'torch'))))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['shoal_common.errors', 'shoal_common.hashchain']"
