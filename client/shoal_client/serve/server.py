# SPDX-License-Identifier: Apache-2.0
"""The sockets: uvicorn in a thread of its own, plain or TLS, with client certificates where a CA is given."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from shoal_client.periodic import Periodic
from shoal_common.errors import Fatal, InputError

START_SECONDS, STOP_SECONDS = 10.0, 1.5
KEEP_ALIVE_SECONDS = 120  # kube-scheduler keeps its connections for 90
RENEW_SECONDS = 60.0  # between two looks at the certificate's files


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, option: str) -> Address:
        """Read HOST:PORT, with [..] around an IPv6 address; raises InputError."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or not 0 <= int(port) < 65536:
            raise InputError(option, repr(text), "is not HOST:PORT", "write for example 127.0.0.1:8888")
        return cls(host.strip("[]") or "0.0.0.0", int(port))


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a server that speaks HTTPS; with a CA only clients with a certificate of it are served."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@final
class HttpServer:
    """One application on one address, in a thread."""

    def __init__(
        self, application: Callable[..., Awaitable[Any]], address: Address, tls: Tls | None = None
    ) -> None:
        """Bind the address at once.

        Raises:
            InputError: the address cannot be bound, or a TLS file cannot be read.
        """
        import uvicorn

        files = _files(tls)
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        # asyncio turns Nagle's algorithm off only where the protocol is named: 40 ms an answer otherwise
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((address.host, address.port))
        except OSError as error:
            self._socket.close()
            problem = error.strerror or str(error)
            raise InputError(f"{address.host}:{address.port}", "listen", problem, "take another") from error
        self._tls, self._shown = tls, _stamp(tls)
        self._config = uvicorn.Config(
            application,
            http="httptools",
            ws="none",
            loop="asyncio",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=1,
            **files,
        )
        self._server = uvicorn.Server(self._config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._renewing = Periodic("certificate", self.renew_certificate, RENEW_SECONDS)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Serve from now on; a certificate that is renewed on disk is shown within a minute.

        Raises:
            Fatal: it did not come up.
        """
        self._thread.start()
        until = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise Fatal("the HTTP server did not start; see the log")
            time.sleep(0.005)
        if self._tls is not None:
            self._renewing.start()

    def renew_certificate(self) -> bool:
        """Show new connections the certificate as it is on disk now; whether it changed and can be read."""
        stamp = _stamp(self._tls)
        if self._tls is None or stamp is None or stamp == self._shown or self._config.ssl is None:
            return False
        try:
            _files(self._tls)  # a half-written pair must not reach the context in use
            self._config.ssl.load_cert_chain(self._tls.certificate, self._tls.key)
        except (InputError, OSError):
            return False
        self._shown = stamp
        return True

    def stop(self) -> None:
        """Answer what was asked, then end."""
        self._renewing.stop()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))


def _stamp(tls: Tls | None) -> tuple[int, int] | None:
    """When certificate and key were written; None where one of them is not there."""
    if tls is None:
        return None
    try:
        return tls.certificate.stat().st_mtime_ns, tls.key.stat().st_mtime_ns
    except OSError:
        return None


def _files(tls: Tls | None) -> dict[str, Any]:
    """uvicorn's options of a TLS server, with every file tried; raises InputError."""
    if tls is None:
        return {}
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:
        pair, remedy = f"{tls.certificate}, {tls.key}", "give a certificate and its key as PEM files"
        raise InputError(pair, "TLS", error.strerror or str(error), remedy) from error
    options: dict[str, Any] = {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except OSError as error:
            problem, remedy = error.strerror or str(error), "give a PEM file of CA certificates"
            raise InputError(str(tls.client_ca), "client CA", problem, remedy) from error
        options |= {"ssl_ca_certs": str(tls.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options
