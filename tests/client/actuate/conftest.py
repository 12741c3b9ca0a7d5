# SPDX-License-Identifier: Apache-2.0
"""An emulated API server, a leader by a clock that tests move, and the cluster's state as last observed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from shoal_client.actuate.authority import Authority
from shoal_client.actuate.events import Events
from shoal_client.actuate.leader import Leader, LeaseSettings
from shoal_client.kube.api import Api, connect
from shoal_client.policies.registry import Policies
from shoal_client.state.live import LiveCluster
from shoal_simulations.control_plane import ApiServer


class Clock:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    return connect(server.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leader(api: Api) -> Leader:
    """A leader, by a clock of its own that stands still."""
    leader = Leader(api, LeaseSettings("shoal", "default", "a"), Clock())
    assert leader.try_acquire_or_renew()
    return leader


@pytest.fixture
def cluster() -> LiveCluster:
    return LiveCluster()


@pytest.fixture
def observe(server: ApiServer, cluster: LiveCluster) -> Callable[[], None]:
    """Bring the cluster's state up to what the server holds now."""

    def relist() -> None:
        cluster.replace("Node", server.objects("nodes"))
        cluster.replace("Pod", server.objects("pods"))

    return relist


@pytest.fixture
def events(api: Api) -> Events:
    return Events(api, "test")


@pytest.fixture
def grant() -> Callable[[Mapping[str, object]], Authority]:
    """An authority under one active policy with these actions."""

    def of(actions: Mapping[str, object]) -> Authority:
        policies = Policies()
        spec = {"mode": "Active", "actions": actions}
        policies.set({"metadata": {"name": "p", "uid": "p-1", "generation": 1}, "spec": spec})
        policies.mark_synced()
        return Authority(policies, lambda namespace: {})

    return of
