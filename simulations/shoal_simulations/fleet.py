# SPDX-License-Identifier: Apache-2.0
"""A fleet of virtual clusters, described in TOML: which hardware and work, what is learned, how privately.

The embedded fleets lie in `fleets/`: `default`, `small`, `article`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from shoal_common.errors import InputError
from shoal_common.twin.scenarios import NODE_CLASSES, NodeClass, Scenario, Workload
from shoal_common.twin.traced import Recorded
from shoal_simulations.hardware import NodeClassConfig, Positive, Share
from shoal_simulations.toml_config import Section, read_toml, validate
from shoal_simulations.traces.workload import recorded

Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")]


QuotaShare = Annotated[float, Field(gt=0, le=1)]


def _sums_to_one(section: Section) -> Section:
    """Refuse shares that do not sum to 1."""
    total = sum(section.model_dump().values())
    if abs(total - 1) > 1e-6:
        raise ValueError(f"the shares sum to {total:g}; make them sum to 1")
    return section


class NodeGroup(Section):
    """So many nodes of one class."""

    node_class: Annotated[str, Field(alias="class")]
    """A built-in class (old-cpu, new-cpu, gpu, dpu, cpu64, a100x2, bluefield) or one of `[classes.NAME]`."""
    count: Annotated[int, Field(ge=1, le=10_000)]
    """How many nodes of it."""


class Mix(Section):
    """Shares of arriving pods by kind; they sum to 1."""

    service: Share
    """Latency-sensitive services: a fixed time, slowed by contention."""
    compute: Share
    """Compute-bound batch: done sooner on faster, emptier nodes."""
    io: Share
    """I/O-bound batch: bound by the node's I/O, which DPU nodes have more of."""
    gpu: Share
    """Pods that ask for accelerators, shared (milli-GPU) or whole."""

    _sum = model_validator(mode="after")(_sums_to_one)


class Arrivals(Section):
    """How pods arrive: a daily rhythm, bursts of one app, heavy-tailed durations."""

    diurnal: Share = 0.35
    """Swing of the arrival rate around its mean; 0 is a flat rate."""
    period_seconds: Positive = 7_200.0
    """Length of the rhythm, s. Two hours instead of a day, so that an episode of two hours sees all of it."""
    bursts_per_hour: Annotated[float, Field(ge=0, le=60)] = 3.0
    """How often one app suddenly asks for many pods."""
    burst_pods: Annotated[float, Field(ge=0, le=1_000)] = 8.0
    """Pods of a burst, on average."""
    heavy_tail: Share = 0.0
    """Share of pods whose duration is Pareto (index 1.5) instead of log-normal."""


class Site(Section):
    """Energy and faults of the place."""

    price_amplitude: Share = 0.3
    """Swing of the energy price around its mean over the period of the arrivals."""
    battery_wh: Annotated[float, Field(ge=0)] = 0.0
    """Battery, Wh; 0 is a site on the grid."""
    failures_per_node_day: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Node failures a day and node."""
    repair_seconds: Positive = 600.0
    """Mean time until a failed node is back, s."""


class Trace(Section):
    """Arrivals from a recorded pod list instead of generated ones (docs/traces.md)."""

    path: Annotated[str, Field(min_length=1)]
    """The file; a relative path starts at the fleet file, `$NAME` is taken from the environment."""
    format: Literal["openb", "borg-2011"]
    """Who wrote it. The list must record arrivals and lifetimes (the Borg 2019 sample has no lifetimes)."""


class Cluster(Section):
    """One virtual cluster: its nodes and its work."""

    name: Name
    """Shown in tables; lower-case letters, digits and dashes, unique in the fleet."""
    nodes: Annotated[tuple[NodeGroup, ...], Field(min_length=1)]
    """The hardware, by class and count."""
    scale: Positive = 1.0
    """Multiplies every count (rounded, at least one node a group): the same cluster smaller or larger."""
    mix: Mix | None = None
    """Shares of arriving pods by kind. Give this or `trace`."""
    trace: Trace | None = None
    """A recorded pod list. Training takes windows of its first 70 %, the comparison of the rest."""
    load: Annotated[float, Field(gt=0, le=2)] = 0.66
    """CPU that arriving pods request on average, as a share of the cluster's cores. At 0.62-0.70 CPUs
    seldom queue while GPU-heavy mixes overload their accelerators."""
    apps: Annotated[int, Field(ge=1, le=1_000)] = 28
    """Distinct applications, each with its own requests, use and duration."""
    arrivals: Arrivals = Arrivals()
    """The pattern of arrivals."""
    site: Site = Site()
    """Energy and faults of the place."""

    def scenario(self, classes: Mapping[str, NodeClass], seconds: float) -> Scenario:
        """The same as the twin takes it, for episodes of so many seconds."""
        shares = (
            (self.mix.service, self.mix.compute, self.mix.io, self.mix.gpu) if self.mix else (1.0, 0, 0, 0)
        )
        workload = Workload(mix=shares, load=self.load, apps=self.apps, **self.arrivals.model_dump())
        counts = ((classes[g.node_class], max(1, round(g.count * self.scale))) for g in self.nodes)
        nodes, site = tuple(counts), self.site.model_dump()
        return Scenario(self.name, nodes, workload, seconds, recorded=self._recorded(nodes), **site)

    def _recorded(self, nodes: tuple[tuple[NodeClass, int], ...]) -> Recorded | None:
        if self.trace is None:
            return None
        return recorded(Path(self.trace.path), self.trace.format, tuple(c for c, _ in nodes))

    @model_validator(mode="after")
    def _one_kind_of_work(self) -> Cluster:
        if (self.mix is None) == (self.trace is None):
            raise ValueError("needs exactly one of mix and trace; give one of them")
        return self


class Objective(Section):
    """Weights of the four reward terms in the composite that rows are compared by; they sum to 1."""

    util: Share = 0.25
    """Stranded capacity of nodes that are on."""
    qos: Share = 0.40
    """Slowdown above the SLA. The largest: users feel it."""
    energy: Share = 0.25
    """Power above deep idle."""
    penalty: Share = 0.10
    """Pending pods, evictions, out-of-memory kills and money."""

    _sum = model_validator(mode="after")(_sums_to_one)


class FleetInfo(Section):
    """What the fleet is called and what it is judged by."""

    name: Name
    """Shown in reports."""
    objective: Objective = Objective()
    """Fixed in this file, never per run, so that results compare."""


class Learning(Section):
    """What each cluster learns, and from how much."""

    algorithm: Literal["td3"] = "td3"
    """Set-TD3: twin critics over a set of candidates, delayed and smoothed (docs/learners/td3.md)."""
    width: Annotated[int, Field(ge=8, le=512)] = 32
    """Width of the networks. 32 loses nothing here, and differential privacy wants few parameters."""
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Discount per decision. 0 makes it a contextual bandit: then targets and the twin minimum are idle."""
    batch: Annotated[int, Field(ge=1, le=65_536)] = 128
    """Transitions an update without privacy. With privacy `privacy.batch` holds instead."""
    candidates: Annotated[int, Field(ge=2, le=1_024)] = 8
    """Candidates kept of a decision, the chosen one among them. 8: twice the speed, no loss measured."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 2e-3
    """Step of Adam, for actor and critic."""
    updates_per_round: Annotated[int, Field(ge=1, le=100_000)] = 25
    """Critic updates between two aggregations. 10-25: drift between clusters stays small."""
    first_decisions: Annotated[int, Field(ge=1, le=10_000_000)] = 4_000
    """Decisions that the behaviour policy logs before the first round."""
    decisions_per_round: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Fresh decisions that the current policy adds each round; 0 learns from the first log alone."""
    behaviour: Literal["default-random", "default", "random"] = "default-random"
    """Who made the logged decisions: half kube-scheduler's profile and half random covers good and bad."""
    reward: Literal["leave-one-out", "measurement", "shuffled"] = "leave-one-out"
    """leave-one-out: the twin's counterfactual without the pod. measurement: the node's own change. shuffled:
    a negative control, leave-one-out rewards dealt out at random, from which nothing can be learned."""
    counterfactual_error: Annotated[float, Field(ge=0, le=0.9)] = 0.0
    """How wrong the counterfactual model is: speeds, power, interference, each off by up to this share."""
    quotas: tuple[QuotaShare, QuotaShare] | None = None
    """Lowest and highest share of its CPU and memory request that the policy may give a pod; absent: it gets
    what it asks for. Logs of schedulers hold no other quota, so let it try some: `decisions_per_round`."""
    start: Literal["scratch", "pretrained"] = "scratch"
    """Where round 1 begins. pretrained: fitted to one-step lookahead on a public scenario, which costs no
    privacy since no cluster's records are read."""

    @model_validator(mode="after")
    def _ordered_quotas(self) -> Learning:
        if self.quotas is not None and self.quotas[0] > self.quotas[1]:
            raise ValueError(f"quotas {list(self.quotas)} are not in order; give the lowest share first")
        return self


class Privacy(Section):
    """Differential privacy of what leaves a cluster: unit one transition, neighbours by add or remove."""

    enabled: bool = True
    """Off only for baselines; `--no-dp` does the same for one run."""
    noise_multiplier: Annotated[float, Field(gt=0, le=1_000)] | None = None
    """Noise as a multiple of `clip_norm`. Give this or `target_epsilon`."""
    target_epsilon: Annotated[float, Field(gt=0, le=100)] | None = None
    """Epsilon after all rounds; the noise is calibrated to it. Give this or `noise_multiplier`."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 2e-6
    """Probability that the guarantee may fail; below 1 / `units_public`, better below a tenth of it."""
    clip_norm: Positive = 0.2
    """Largest gradient norm of one transition. 0.2: most norms lie below 1; a larger clip only adds noise."""
    batch: Annotated[int, Field(ge=1, le=65_536)] = 1_024
    """Expected size of a Poisson batch. Large: noise is cheap, records and batch are what count."""
    units_public: Annotated[int, Field(ge=1, le=100_000_000)] = 48_000
    """A public number of transitions, as many as are logged: each is drawn at `batch` / `units_public`."""

    @model_validator(mode="after")
    def _consistent(self) -> Privacy:
        if (self.noise_multiplier is None) == (self.target_epsilon is None) and self.enabled:
            raise ValueError("needs exactly one of noise_multiplier and target_epsilon; give one of them")
        if self.batch > self.units_public:
            raise ValueError(f"batch {self.batch} exceeds units_public {self.units_public}; lower batch")
        if self.delta >= 1 / self.units_public:
            most = f"{0.1 / self.units_public:.0e}"
            raise ValueError(f"delta {self.delta:g} is not below 1 / units_public; give at most {most}")
        return self


class Federation(Section):
    """How updates become one model."""

    rounds: Annotated[int, Field(ge=1, le=100_000)] = 40
    """Rounds of a run; `--rounds` overrides it."""
    aggregate: Literal["mean"] = "mean"
    """Weighted mean with clipped public weights."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of clusters asked in each round."""


class Evaluation(Section):
    """The comparison after the last round, on arrivals that training never saw."""

    seeds: Annotated[int, Field(ge=8, le=1_000)] = 8
    """Held-out arrival seeds a cluster. At least 8, so that an interval means something."""
    episode_seconds: Annotated[float, Field(ge=600, le=604_800)] = 7_200.0
    """Length of one episode, s."""


def _unique_names(clusters: tuple[Cluster, ...]) -> tuple[Cluster, ...]:
    names = [cluster.name for cluster in clusters]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two clusters are named {min(twice)}; give each its own name")
    return clusters


class Fleet(Section):
    """The whole file."""

    fleet: FleetInfo
    """Name and objective."""
    classes: dict[str, NodeClassConfig] = Field(default_factory=dict)
    """Node classes of your own, as `[classes.NAME]`; a built-in name is replaced."""
    clusters: Annotated[tuple[Cluster, ...], Field(min_length=1), AfterValidator(_unique_names)]
    """The clusters, as `[[clusters]]`."""
    learning: Learning = Learning()
    """What each cluster learns."""
    privacy: Privacy
    """The privacy of what leaves a cluster."""
    federation: Federation = Federation()
    """How updates become one model."""
    evaluation: Evaluation = Evaluation()
    """The comparison at the end."""

    def node_classes(self) -> dict[str, NodeClass]:
        """The built-in classes and the file's own."""
        return NODE_CLASSES | {name: config.node_class(name) for name, config in self.classes.items()}

    def scenarios(self) -> tuple[Scenario, ...]:
        """The clusters as the twin takes them."""
        classes, seconds = self.node_classes(), self.evaluation.episode_seconds
        return tuple(cluster.scenario(classes, seconds) for cluster in self.clusters)


def embedded() -> list[str]:
    """Names of the fleets that come with the package."""
    folder = files("shoal_simulations") / "fleets"
    names = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_fleet(fleet: str) -> Fleet:
    """Read a fleet from a TOML file, or an embedded one by its name.

    Raises:
        InputError: one line with file, field, problem and remedy.
    """
    path = Path(fleet)
    exists = os.path.exists(fleet)  # False also for a name that no file can have
    if fleet in embedded() and not exists:
        path = Path(str(files("shoal_simulations") / "fleets" / f"{fleet}.toml"))
    elif not exists and path.suffix != ".toml":
        remedy = f"name a TOML file or one of {', '.join(embedded())}"
        raise InputError(fleet, "--fleet", "no such file or embedded fleet", remedy)
    parsed = validate(Fleet, read_toml(path, "--fleet"), str(path))
    _check_references(parsed, path)
    return _with_trace_paths(parsed, path)


def _with_trace_paths(fleet: Fleet, path: Path) -> Fleet:
    """The fleet with absolute trace paths, since workers may stand elsewhere.

    Raises:
        InputError: a trace is not there.
    """
    clusters = []
    for i, cluster in enumerate(fleet.clusters):
        if cluster.trace is None:
            clusters.append(cluster)
            continue
        file = (path.parent / os.path.expandvars(cluster.trace.path)).resolve()
        if not file.is_file():
            field = f"clusters[{i}].trace.path"
            raise InputError(str(path), field, f"no file {file}", "give the path of a pod list")
        trace = cluster.trace.model_copy(update={"path": str(file)})
        clusters.append(cluster.model_copy(update={"trace": trace}))
    return fleet.model_copy(update={"clusters": tuple(clusters)})


def _check_references(fleet: Fleet, path: Path) -> None:
    """Refuse node classes that are not there."""
    known = fleet.node_classes()
    for i, cluster in enumerate(fleet.clusters):
        for j, group in enumerate(cluster.nodes):
            if group.node_class not in known:
                problem, remedy = (
                    f"no node class {group.node_class!r}",
                    f"use one of {', '.join(sorted(known))}",
                )
                raise InputError(str(path), f"clusters[{i}].nodes[{j}].class", problem, remedy)


def with_overrides(fleet: Fleet, rounds: int | None, no_dp: bool) -> Fleet:
    """The fleet under the options of one run."""
    federation = fleet.federation.model_copy(update={"rounds": rounds or fleet.federation.rounds})
    privacy = fleet.privacy.model_copy(update={"enabled": fleet.privacy.enabled and not no_dp})
    return fleet.model_copy(update={"federation": federation, "privacy": privacy})
