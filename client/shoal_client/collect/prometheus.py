# SPDX-License-Identifier: Apache-2.0
"""A small client of Prometheus' HTTP API (v1): instant and range queries, each with a deadline.

Works with everything that speaks this API (Prometheus, Thanos, Mimir, VictoriaMetrics). A credential in the
URL is sent as basic authentication, a token file is read again for each request, as kubelets rotate them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final, TypeVar, final
from urllib.parse import urlencode

import msgspec
import urllib3
from urllib3.exceptions import LocationParseError
from urllib3.util import Url, make_headers, parse_url

from shoal_common.errors import Fatal, InputError, Transient

CONNECT_SECONDS: Final = 2.0
READ_SECONDS: Final = 10.0
REFUSED: Final = (400, 422)  # the query itself: bad syntax, or series that cannot be matched


class Series(msgspec.Struct, frozen=True):
    """One time series of an instant query: its labels and its value, which may be NaN or infinite.

    Labels stay as they came: for one query a node's are the same bytes every time, which is what `join` knows
    it by.
    """

    metric: msgspec.Raw
    value: tuple[float, str]

    @property
    def labels(self) -> dict[str, str]:
        """The labels, decoded."""
        return msgspec.json.decode(self.metric, type=dict[str, str])

    @property
    def number(self) -> float:
        """The value; NaN where it is no number."""
        return _number(self.value[1])


class RangeSeries(msgspec.Struct, frozen=True):
    """One time series of a range query: (seconds since the epoch by the server's clock, value)."""

    metric: dict[str, str]
    values: list[tuple[float, str]]

    def last(self) -> tuple[float, float] | None:
        """The newest finite (time, value), None without one."""
        for at, text in reversed(self.values):
            value = _number(text)
            if math.isfinite(value):
                return at, value
        return None


class _Vector(msgspec.Struct):
    result: list[Series]


class _Matrix(msgspec.Struct):
    result: list[RangeSeries]


class _Scalar(msgspec.Struct):
    result: tuple[float, str]


_Data = TypeVar("_Data", _Vector, _Matrix, _Scalar)


class _Answer(msgspec.Struct):
    status: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


@final
class PrometheusClient:
    """Queries one server. Thread-safe; raises Transient when it is away and Fatal for a query it refuses."""

    def __init__(
        self,
        url: str,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        try:
            parts = parse_url(url)
        except LocationParseError:
            parts = Url()
        if parts.scheme not in ("http", "https") or not parts.host:
            raise InputError(url, "--prometheus", "is no address of a Prometheus", "give http://HOST:PORT")
        if ca_file is not None and not ca_file.is_file():
            raise InputError(str(ca_file), "--prometheus-ca", "is no file", "give one in PEM form")
        self._base = parts._replace(auth=None, query=None, fragment=None).url.rstrip("/")
        self._headers = make_headers(basic_auth=parts.auth) if parts.auth else {}
        self._headers["Content-Type"] = "application/x-www-form-urlencoded"
        self._token_file, self._read = token_file, read_seconds
        self._pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=read_seconds),
            retries=False,
            maxsize=2,
            ca_certs=None if ca_file is None else str(ca_file),
        )

    def instant(self, promql: str) -> list[Series]:
        """The value of every series of an expression now."""
        return self._query("query", {"query": promql}, _Vector).result

    def range(self, promql: str, start: float, end: float, step: float) -> list[RangeSeries]:
        """Values of every series from `start` to `end`, seconds since the epoch by the server's clock."""
        form = {"query": promql, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        return self._query("query_range", form, _Matrix).result

    def server_time(self) -> float:
        """Seconds since the epoch by the server's clock."""
        return _number(self._query("query", {"query": "time()"}, _Scalar).result[1])

    def _query(self, path: str, form: dict[str, str], kind: type[_Data]) -> _Data:
        answer = self._post(path, form | {"timeout": f"{self._read:g}s"})
        try:
            return msgspec.json.decode(answer.data, type=kind)
        except msgspec.DecodeError as e:
            raise Transient(f"{self._base}: answer not understood: {e}") from e

    def _post(self, path: str, form: dict[str, str]) -> _Answer:
        headers = dict(self._headers)
        try:
            if self._token_file is not None:
                headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
            response = self._pool.request(
                "POST",
                f"{self._base}/api/v1/{path}",
                body=urlencode(form),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=self._read),
                redirect=False,
            )
            answer = msgspec.json.decode(response.data, type=_Answer)
        except (urllib3.exceptions.HTTPError, OSError) as e:
            raise Transient(f"{self._base}: {e}") from e
        except msgspec.DecodeError as e:
            raise Transient(f"{self._base}: HTTP {response.status}, no answer of Prometheus: {e}") from e
        if response.status in REFUSED:
            raise Fatal(f"{self._base}: {answer.error}")
        if response.status != 200 or answer.status != "success":
            raise Transient(f"{self._base}: HTTP {response.status} {answer.error}".rstrip())
        return answer


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
