# SPDX-License-Identifier: Apache-2.0
"""The catalogue of MIG configurations from the GPU operator's ConfigMap, read again now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

import msgspec

from shoal_client.actuate.mig_catalogue import Catalogue, read_catalogue
from shoal_client.kube.api import CONFIG_MAPS, Api, NotFound

KEPT_SECONDS = 300.0
KEY = "config.yaml"


@final
class ConfigMapCatalogue:
    """Reads mig-parted's `config.yaml`; a missing or unreadable one offers nothing."""

    def __init__(
        self, api: Api, namespace: str, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._namespace, self._name, self._clock = api, namespace, name, clock
        self._kept: tuple[float, Catalogue] = (float("-inf"), {})

    def read(self) -> Catalogue:
        """The configurations on offer, at most a few minutes old.

        Raises:
            Transient: the API did not answer.
        """
        since, catalogue = self._kept
        if self._clock() - since >= KEPT_SECONDS:
            catalogue = self._fetch()
            self._kept = (self._clock(), catalogue)
        return catalogue

    def _fetch(self) -> Catalogue:
        try:
            content = self._api.get(CONFIG_MAPS, self._name, self._namespace).get("data") or {}
            return read_catalogue(msgspec.yaml.decode(content.get(KEY, "")))
        except (NotFound, msgspec.DecodeError):
            return {}
