# SPDX-License-Identifier: Apache-2.0
"""Crash at every byte of an append; change, remove or repeat any byte of an acknowledged file."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal_common.errors import LedgerCorrupt
from shoal_common.hashchain import HashChain

values: st.SearchStrategy[Any] = st.one_of(
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.booleans(), st.none()
)
bodies = st.dictionaries(st.text(max_size=8), st.one_of(values, st.lists(values, max_size=3)), max_size=4)
quick = settings(
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@quick
@given(st.lists(bodies, max_size=5))
def test_what_was_appended_comes_back(tmp_path: Path, contents: list[dict[str, Any]]) -> None:
    path = tmp_path / "chain"
    path.unlink(missing_ok=True)
    chain = HashChain(path)
    for number, body in enumerate(contents):
        chain.append(f"é\n{number}", body)
    assert [record.body for record in HashChain(path).records] == contents
    assert HashChain(path).records == chain.records


@pytest.mark.parametrize("before", [0, 2])
def test_a_crash_at_any_byte_is_before_or_after(tmp_path: Path, before: int) -> None:
    path = tmp_path / "chain"
    chain = HashChain(path)
    for number in range(before):
        chain.append(str(number), {"n": number})
    start = path.stat().st_size if before else 0
    last = chain.append("last", {"x": 1.5, "text": 'a"}\\{'})
    content = path.read_bytes()
    for size in range(start, len(content) + 1):
        path.write_bytes(content[:size])
        again = HashChain(path)
        assert len(again.records) - before == (1 if size >= len(content) - 1 else 0), size
        assert path.read_bytes() == content[:size], "reading changes nothing"
        assert again.append("last", last.body) == last
        assert path.read_bytes() == content


def test_any_changed_byte_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "chain"
    chain = HashChain(path)
    for number in range(3):
        chain.append(str(number), {"n": number})
    content = path.read_bytes()
    for position in range(len(content)):
        for byte in {0, 10, 32, 34, 48, 125, 255, content[position] ^ 1, content[position] ^ 0x20}:
            if byte == content[position]:
                continue
            path.write_bytes(content[:position] + bytes([byte]) + content[position + 1 :])
            with pytest.raises(LedgerCorrupt):
                HashChain(path)


@quick
@given(st.data())
def test_removed_and_repeated_bytes_are_detected(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "chain"
    path.unlink(missing_ok=True)
    chain = HashChain(path)
    for number in range(3):
        chain.append(str(number), {"n": number})
    content = path.read_bytes()
    begin = data.draw(st.integers(0, len(content) - 2))
    end = data.draw(st.integers(begin + 1, len(content) - 1))  # a removed end is a crash, tested above
    for changed in (content[:begin] + content[end:], content[:end] + content[begin:]):
        path.write_bytes(changed)
        if changed != content:
            with pytest.raises(LedgerCorrupt):
                HashChain(path)
