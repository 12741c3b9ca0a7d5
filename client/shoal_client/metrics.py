# SPDX-License-Identifier: Apache-2.0
"""Every metric that a client exports, in one place: prefix `shoal_`, base units, bounded labels.

Never a label with a pod's, tenant's or user's name. One process, one registry; docs/operations/metrics.md
lists them, and a test keeps page and code equal.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

# no second series for each counter that says when it began
disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry(auto_describe=True)

EXPERIENCE_DECISIONS = Counter(
    "shoal_experience_decisions_total",
    "Attempts to place a pod that were recorded, by who asked and in which mode.",
    ("source", "mode"),
    registry=REGISTRY,
)
EXPERIENCE_OUTCOMES = Counter(
    "shoal_experience_outcomes_total",
    "Attempts that were closed, by what became of them.",
    ("outcome",),
    registry=REGISTRY,
)
EXPERIENCE_WAITING = Gauge(
    "shoal_experience_waiting", "Pods with an attempt that are not on a node yet.", registry=REGISTRY
)
EXPERIENCE_DROPPED = Counter(
    "shoal_experience_dropped_total",
    "Decisions and results that were not recorded because too much was in line, by which line.",
    ("line",),
    registry=REGISTRY,
)
EXPERIENCE_ERRORS = Counter(
    "shoal_experience_errors_total",
    "Events that could not be taken up because of an error in the client.",
    registry=REGISTRY,
)
EXPERIENCE_ROWS = Gauge("shoal_experience_rows", "Decisions in the store.", registry=REGISTRY)
EXPERIENCE_EVICTED = Counter(
    "shoal_experience_evicted_total",
    "Decisions that left the store for newer ones, by the bound that was reached (capacity, tenant).",
    ("bound",),
    registry=REGISTRY,
)
EXPERIENCE_WRITE_ERRORS = Counter(
    "shoal_experience_write_errors_total",
    "Transactions that the disk refused and that are tried again.",
    registry=REGISTRY,
)

LEADER = Gauge("shoal_leader", "1 while this process holds the lease and may act.", registry=REGISTRY)
ACTUATIONS = Counter(
    "shoal_actuations_total",
    "Actions on the cluster by kind and by what became of them.",
    ("action", "result"),
    registry=REGISTRY,
)
ACTUATOR_LAST_STEP = Gauge(
    "shoal_actuator_last_step_timestamp_seconds",
    "When each part of the actuation last ended a step without an error.",
    ("part",),
    registry=REGISTRY,
)
GATED_PODS = Gauge("shoal_gated_pods", "Pods that carry Shoal's scheduling gate now.", registry=REGISTRY)
GATE_WAIT = Histogram(
    "shoal_gate_wait_seconds",
    "How long a pod carried Shoal's gate, from when it was seen.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    registry=REGISTRY,
)
WEBHOOK_REQUESTS = Counter(
    "shoal_webhook_requests_total",
    "Pods that the mutating webhook was shown, by what it answered.",
    ("result",),
    registry=REGISTRY,
)

METRICS_ROUNDS = Counter(
    "shoal_metrics_rounds_total",
    "Rounds of questions to Prometheus, by how they ended (ok, unavailable, error).",
    ("result",),
    registry=REGISTRY,
)
METRICS_ROUND_SECONDS = Histogram(
    "shoal_metrics_round_seconds",
    "How long a round of questions to Prometheus took.",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    registry=REGISTRY,
)
METRICS_AGE = Gauge(
    "shoal_metrics_age_seconds",
    "Median age of an exporter's newest samples over the nodes; infinite without any.",
    ("source",),
    registry=REGISTRY,
)
METRICS_NODES = Gauge(
    "shoal_metrics_nodes", "Nodes that an exporter tells something about.", ("source",), registry=REGISTRY
)
METRICS_UNMATCHED = Gauge(
    "shoal_metrics_unmatched_series",
    "Series of an exporter whose labels tell no node of this cluster.",
    ("source",),
    registry=REGISTRY,
)
METRICS_DUPLICATES = Gauge(
    "shoal_metrics_duplicate_values",
    "Values that are unknown because two series claim to be the same, which is scraped twice.",
    registry=REGISTRY,
)
METRICS_REFUSED = Gauge(
    "shoal_metrics_refused_queries", "Queries that Prometheus refused in the last round.", registry=REGISTRY
)
CLUSTER_REQUESTED = Gauge(
    "shoal_cluster_requested_ratio",
    "Requested over allocatable, over all nodes.",
    ("resource",),
    registry=REGISTRY,
)
CLUSTER_USED = Gauge(
    "shoal_cluster_used_ratio",
    "Measured use over allocatable, over the nodes that are measured; NaN without any.",
    ("resource",),
    registry=REGISTRY,
)

LATENCY_BUCKETS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0)
EXTENDER_REQUESTS = Counter(
    "shoal_extender_requests_total",
    "Requests of kube-scheduler by verb and HTTP status.",
    ("verb", "code"),
    registry=REGISTRY,
)
EXTENDER_SECONDS = Histogram(
    "shoal_extender_request_duration_seconds",
    "From a request's last byte to its answer's first one.",
    ("verb",),
    buckets=LATENCY_BUCKETS,
    registry=REGISTRY,
)
EXTENDER_WHOLE_NODES = Counter(
    "shoal_extender_whole_nodes_total",
    "Requests that carried whole nodes: the scheduler's stanza should say nodeCacheCapable: true.",
    registry=REGISTRY,
)
DECISIONS = Counter(
    "shoal_decisions_total",
    "Answers by mode and by who gave the scores: the policy, or nobody (neutral).",
    ("mode", "source"),
    registry=REGISTRY,
)
FALLBACKS = Counter(
    "shoal_fallbacks_total",
    "Neutral answers by reason; modes (off, shadow, not_selected, one_node_only) are reasons too.",
    ("reason",),
    registry=REGISTRY,
)
MASKED_NODES = Counter(
    "shoal_masked_nodes_total",
    "Nodes that the filter verb kept from a pod: momentarily full, or lacking the hardware for ever.",
    ("kind",),
    registry=REGISTRY,
)
CHOICES_BOUND = Counter(
    "shoal_choices_bound_total",
    "Pods bound after a decision, by mode and by whether kube-scheduler took the policy's choice.",
    ("mode", "agreed"),
    registry=REGISTRY,
)
BREAKER_OPEN = Gauge(
    "shoal_breaker_open", "1 while the circuit breaker keeps decisions from the policy.", registry=REGISTRY
)
DRIFT_INDEX = Gauge(
    "shoal_drift_index",
    "Population stability index of pods and hardware in the latest window against the usual.",
    registry=REGISTRY,
)
CLIPPED_RATIO = Gauge(
    "shoal_observation_clipped_ratio",
    "Share of the capped features of the latest observation that stood at their cap.",
    registry=REGISTRY,
)
POLICY_INFO = Gauge(
    "shoal_policy_info", "1 for the policy that is loaded.", ("version", "digest"), registry=REGISTRY
)
POLICY_RELOADS = Counter(
    "shoal_policy_reloads_total",
    "Artifacts that appeared on disk, by whether they were taken or refused.",
    ("result",),
    registry=REGISTRY,
)
ROLLBACKS = Counter(
    "shoal_rollbacks_total",
    "Policies taken back to Shadow, by the guardrail that asked for it.",
    ("guardrail",),
    registry=REGISTRY,
)

OPERATOR_SYNCED = Gauge(
    "shoal_operator_synced", "1 once the cluster's scheduling policies were read.", registry=REGISTRY
)
OPERATOR_ERRORS = Counter(
    "shoal_operator_errors_total",
    "Failed calls and broken watches of the operator; what was known stays in force.",
    registry=REGISTRY,
)
POLICY_MODE = Gauge(
    "shoal_policies", "Scheduling policies by the mode that is in force.", ("mode",), registry=REGISTRY
)

STATE_UNREADABLE = Counter(
    "shoal_state_unreadable_total",
    "API objects that could not be read and were left as they were known, by kind.",
    ("kind",),
    registry=REGISTRY,
)
SUBSCRIBER_ERRORS = Counter(
    "shoal_subscriber_errors_total",
    "Changes of pods that a part of the client failed on.",
    registry=REGISTRY,
)
RESERVATIONS_EXPIRED = Counter(
    "shoal_reservations_expired_total",
    "Decided pods whose room was given free without news of them: events were lost, or they were gone.",
    registry=REGISTRY,
)

BACKGROUND_ERRORS = Counter(
    "shoal_background_errors_total",
    "Steps of a thread of the client's own that failed and are taken again, by thread.",
    ("thread",),
    registry=REGISTRY,
)

WATCH_LAST_EVENT = Gauge(
    "shoal_watch_last_event_timestamp_seconds",
    "When the API was last heard of, by kind: an event, a bookmark or the end of a watch in good order.",
    ("kind",),
    registry=REGISTRY,
)
WATCH_EVENTS = Counter(
    "shoal_watch_events_total",
    "Events of a watch that brought something new, by kind.",
    ("kind",),
    registry=REGISTRY,
)
WATCH_ERRORS = Counter(
    "shoal_watch_errors_total",
    "Lists and watches that failed, by kind and why (error, gone, short, bug).",
    ("kind", "reason"),
    registry=REGISTRY,
)
RELISTS = Counter(
    "shoal_relists_total",
    "Lists of a whole kind, by kind and why: the first one, or the version to watch from was gone.",
    ("kind", "reason"),
    registry=REGISTRY,
)
CACHE_SYNCED = Gauge(
    "shoal_cache_synced", "1 from the first complete list of a kind on.", ("kind",), registry=REGISTRY
)
