# SPDX-License-Identifier: Apache-2.0
"""Live features from node exporter and IPMI exporter: CPU, memory, disks, network, power, faults."""

from __future__ import annotations

from typing import Final

from shoal_client.collect.queries import NODE_EXPORTER, POWER, LiveFeature, Query, Source

CORES = 'count by ($on) (node_cpu_seconds_total{mode="idle"})'
DISK = 'device!~"loop.*|ram.*|zram.*|sr.*|dm-.*|md.*|fd.*"'
LINK = 'device!~"lo|veth.*|cali.*|cilium.*|lxc.*|docker.*|cni.*|flannel.*|tunl.*|kube-ipvs.*|nodelocaldns"'
DISK_BYTES, LINK_BYTES = 8e9, 50e9  # NVMe at PCIe 4, 400 Gb/s


def one(
    name: str, unit: str, high: float, promql: str, doc: str, source: Source = NODE_EXPORTER, low: float = 0.0
) -> Query:
    """A query that brings one feature."""
    return Query(source, promql, (LiveFeature(name, unit, low, high, doc),))


def _rate_per_core(name: str, high: float, counter: str, doc: str) -> Query:
    return one(name, "1/s/core", high, f"sum by ($on) (rate({counter}[$w])) / {CORES}", doc)


def _pressure(name: str, counter: str, doc: str) -> Query:
    return one(name, "ratio", 1.0, f"sum by ($on) (rate(node_pressure_{counter}_seconds_total[$w]))", doc)


def _of_memory(name: str, field: str, doc: str, high: float = 1.0) -> Query:
    promql = f"sum by ($on) (node_memory_{field}_bytes) / sum by ($on) (node_memory_MemTotal_bytes)"
    return one(name, "ratio", high, promql, doc)


def _disks(name: str, unit: str, high: float, counter: str, doc: str) -> Query:
    return one(name, unit, high, f"sum by ($on) (rate(node_disk_{counter}{{{DISK}}}[$w]))", doc)


def _links(name: str, unit: str, high: float, counter: str, doc: str) -> Query:
    return one(name, unit, high, f"sum by ($on) (rate(node_network_{counter}_total{{{LINK}}}[$w]))", doc)


def _per_second(name: str, high: float, counter: str, doc: str) -> Query:
    return one(name, "1/s", high, f"sum by ($on) (rate({counter}[$w]))", doc)


def _in_hour(name: str, high: float, counter: str, doc: str) -> Query:
    return one(name, "1/h", high, f"sum by ($on) (increase({counter}[1h]))", doc)


def _share(name: str, part: str, whole: str, doc: str) -> Query:
    return one(name, "ratio", 1.0, f"max by ($on) ({part} / {whole})", doc)


_CPU_MODES = {
    "user": "in programs",
    "system": "in the kernel",
    "nice": "in programs of low priority",
    "idle": "idle",
    "iowait": "idle while a disk is waited for",
    "irq": "in interrupts",
    "softirq": "in soft interrupts (network)",
    "steal": "taken by the hypervisor",
}

CPU: Final = (
    Query(
        NODE_EXPORTER,
        "avg by (mode, $on) (rate(node_cpu_seconds_total[$w]))",
        tuple(
            LiveFeature(f"cpu_{mode}", "ratio", 0.0, 1.0, f"share of CPU time {doc}", mode)
            for mode, doc in _CPU_MODES.items()
        ),
        "mode",
    ),
    one(
        "cpu_used",
        "millicores",
        1_024_000.0,
        '1000 * sum by ($on) (rate(node_cpu_seconds_total{mode=~"user|system|nice|irq|softirq"}[$w]))',
        "CPU in use by everything on the node",
    ),
    one(
        "cpu_busiest",
        "ratio",
        1.0,
        '1 - min by ($on) (rate(node_cpu_seconds_total{mode="idle"}[$w]))',
        "use of the busiest core",
    ),
    *(
        one(
            f"load_{minutes}m",
            "ratio",
            16.0,
            f"sum by ($on) (node_load{minutes}) / {CORES}",
            f"runnable tasks per core, mean of {minutes} min",
        )
        for minutes in (1, 5, 15)
    ),
    one(
        "procs_running",
        "ratio",
        16.0,
        f"sum by ($on) (node_procs_running) / {CORES}",
        "runnable tasks per core",
    ),
    one("procs_blocked", "count", 1000.0, "sum by ($on) (node_procs_blocked)", "tasks that wait for a disk"),
    _rate_per_core("context_switches", 1e6, "node_context_switches_total", "context switches"),
    _rate_per_core("interrupts", 1e6, "node_intr_total", "interrupts"),
    _rate_per_core("forks", 1e4, "node_forks_total", "new processes"),
    one(
        "run_queue_wait",
        "ratio",
        16.0,
        f"sum by ($on) (rate(node_schedstat_waiting_seconds_total[$w])) / {CORES}",
        "time that tasks waited for a core, per core",
    ),
    one(
        "cpu_frequency",
        "ratio",
        1.5,
        "avg by ($on) (node_cpu_scaling_frequency_hertz / node_cpu_scaling_frequency_max_hertz)",
        "mean clock over the highest",
    ),
    _in_hour("cpu_throttles", 1e6, "node_cpu_core_throttles_total", "thermal throttling of cores"),
    _pressure("pressure_cpu", "cpu_waiting", "share of time in which some task waits for CPU (PSI)"),
    _pressure("pressure_memory", "memory_waiting", "share of time in which some task waits for memory"),
    _pressure("pressure_memory_full", "memory_stalled", "share of time in which all tasks wait for memory"),
    _pressure("pressure_io", "io_waiting", "share of time in which some task waits for I/O"),
    _pressure("pressure_io_full", "io_stalled", "share of time in which all tasks wait for I/O"),
)

MEMORY: Final = (
    one(
        "memory_used",
        "bytes",
        2.0**45,
        "sum by ($on) (node_memory_MemTotal_bytes - node_memory_MemAvailable_bytes)",
        "memory in use that cannot be reclaimed",
    ),
    _of_memory("memory_available", "MemAvailable", "memory that programs could still get"),
    _of_memory("memory_unused", "MemFree", "memory that nothing uses"),
    _of_memory("memory_cached", "Cached", "page cache"),
    _of_memory("memory_buffers", "Buffers", "block buffers"),
    _of_memory("memory_anonymous", "AnonPages", "anonymous memory of programs"),
    _of_memory("memory_mapped", "Mapped", "mapped files"),
    _of_memory("memory_shared", "Shmem", "shared memory and tmpfs"),
    _of_memory("memory_slab", "Slab", "kernel caches"),
    _of_memory("memory_slab_kept", "SUnreclaim", "kernel caches that cannot be reclaimed"),
    _of_memory("memory_dirty", "Dirty", "memory to be written to disk"),
    _of_memory("memory_writeback", "Writeback", "memory being written to disk"),
    _of_memory("memory_page_tables", "PageTables", "page tables"),
    _of_memory("memory_kernel_stacks", "KernelStack", "stacks of tasks in the kernel"),
    _of_memory("memory_committed", "Committed_AS", "memory promised to programs", 8.0),
    one(
        "hugepages_free",
        "ratio",
        1.0,
        "sum by ($on) (node_memory_HugePages_Free) / sum by ($on) (node_memory_HugePages_Total)",
        "free over all huge pages",
    ),
    one(
        "swap_used",
        "ratio",
        1.0,
        "1 - sum by ($on) (node_memory_SwapFree_bytes) / sum by ($on) (node_memory_SwapTotal_bytes)",
        "swap in use",
    ),
    _per_second("swap_in", 1e6, "node_vmstat_pswpin", "pages read from swap"),
    _per_second("swap_out", 1e6, "node_vmstat_pswpout", "pages written to swap"),
    _per_second("page_faults", 1e8, "node_vmstat_pgfault", "page faults"),
    _per_second("major_faults", 1e6, "node_vmstat_pgmajfault", "page faults that read from disk"),
    _in_hour("oom_kills", 1000.0, "node_vmstat_oom_kill", "processes killed for lack of memory"),
    one(
        "numa_misses",
        "1/s",
        1e8,
        # the zone is in a label "node", which is none of ours
        "sum by ($on) (label_replace(label_replace(rate(node_memory_numa_numa_miss_total[$w]),"
        ' "zone", "$1", "node", "([0-9]+)"), "node", "", "node", "[0-9]+"))',
        "pages from another NUMA zone than wanted",
    ),
    _in_hour("memory_errors_corrected", 1e6, "node_edac_correctable_errors_total", "corrected memory errors"),
    _in_hour("memory_errors", 1000.0, "node_edac_uncorrectable_errors_total", "memory errors not corrected"),
)

DISKS: Final = (
    one(
        "disk_busiest",
        "ratio",
        1.0,
        f"max by ($on) (rate(node_disk_io_time_seconds_total{{{DISK}}}[$w]))",
        "share of time in which the busiest disk works",
    ),
    one(
        "disk_queue",
        "count",
        1024.0,
        f"max by ($on) (rate(node_disk_io_time_weighted_seconds_total{{{DISK}}}[$w]))",
        "requests in line at the fullest disk",
    ),
    _disks("disk_read", "bytes/s", DISK_BYTES, "read_bytes_total", "read from disks"),
    _disks("disk_written", "bytes/s", DISK_BYTES, "written_bytes_total", "written to disks"),
    _disks("disk_reads", "1/s", 1e6, "reads_completed_total", "reads ended"),
    _disks("disk_writes", "1/s", 1e6, "writes_completed_total", "writes ended"),
    one(
        "disk_read_latency",
        "seconds",
        60.0,
        f"sum by ($on) (rate(node_disk_read_time_seconds_total{{{DISK}}}[$w]))"
        f" / sum by ($on) (rate(node_disk_reads_completed_total{{{DISK}}}[$w]))",
        "mean time of a read",
    ),
    one(
        "disk_write_latency",
        "seconds",
        60.0,
        f"sum by ($on) (rate(node_disk_write_time_seconds_total{{{DISK}}}[$w]))"
        f" / sum by ($on) (rate(node_disk_writes_completed_total{{{DISK}}}[$w]))",
        "mean time of a write",
    ),
    one(
        "disk_free",
        "ratio",
        1.0,
        'min by ($on) (node_filesystem_avail_bytes{fstype=~"ext4|xfs|btrfs|zfs"}'
        ' / node_filesystem_size_bytes{fstype=~"ext4|xfs|btrfs|zfs"})',
        "free share of the fullest file system",
    ),
    one(
        "inodes_free",
        "ratio",
        1.0,
        'min by ($on) (node_filesystem_files_free{fstype=~"ext4|xfs"}'
        ' / node_filesystem_files{fstype=~"ext4|xfs"})',
        "free inodes of the fullest file system",
    ),
    one(
        "disk_read_only",
        "count",
        1.0,
        'max by ($on) (node_filesystem_readonly{fstype=~"ext4|xfs|btrfs|zfs",mountpoint="/"})',
        "1 where the root file system takes no writes",
    ),
)

NETWORK: Final = (
    _links("network_received", "bytes/s", LINK_BYTES, "receive_bytes", "received"),
    _links("network_sent", "bytes/s", LINK_BYTES, "transmit_bytes", "sent"),
    _links("network_packets_received", "1/s", 1e8, "receive_packets", "packets received"),
    _links("network_packets_sent", "1/s", 1e8, "transmit_packets", "packets sent"),
    _links("network_drops_received", "1/s", 1e6, "receive_drop", "packets dropped on the way in"),
    _links("network_drops_sent", "1/s", 1e6, "transmit_drop", "packets dropped on the way out"),
    _links("network_errors_received", "1/s", 1e6, "receive_errs", "damaged packets received"),
    _links("network_errors_sent", "1/s", 1e6, "transmit_errs", "packets that could not be sent"),
    one(
        "network_busiest",
        "ratio",
        1.0,
        f"max by ($on) (rate(node_network_transmit_bytes_total{{{LINK}}}[$w])"
        " / (node_network_speed_bytes > 0))",
        "sent over speed, of the busiest link",
    ),
    one(
        "tcp_retransmitted",
        "ratio",
        1.0,
        "sum by ($on) (rate(node_netstat_Tcp_RetransSegs[$w]))"
        " / sum by ($on) (rate(node_netstat_Tcp_OutSegs[$w]))",
        "TCP segments sent again",
    ),
    one("tcp_connections", "count", 1e6, "sum by ($on) (node_netstat_Tcp_CurrEstab)", "open TCP connections"),
    one("tcp_time_wait", "count", 1e6, "sum by ($on) (node_sockstat_TCP_tw)", "TCP connections in TIME_WAIT"),
    _per_second(
        "tcp_listen_drops", 1e5, "node_netstat_TcpExt_ListenDrops", "connections that no program took"
    ),
    _per_second("udp_errors", 1e5, "node_netstat_Udp_InErrors", "UDP datagrams lost on the node"),
    _per_second("softnet_dropped", 1e6, "node_softnet_dropped_total", "packets dropped before the stack"),
    _per_second(
        "softnet_squeezed", 1e6, "node_softnet_times_squeezed_total", "times the stack ran out of budget"
    ),
    _share(
        "conntrack_used",
        "node_nf_conntrack_entries",
        "node_nf_conntrack_entries_limit",
        "connection table in use",
    ),
    _per_second(
        "infiniband_received",
        LINK_BYTES,
        "node_infiniband_port_data_received_bytes_total",
        "bytes received over InfiniBand",
    ),
    _per_second(
        "infiniband_sent",
        LINK_BYTES,
        "node_infiniband_port_data_transmitted_bytes_total",
        "bytes sent over InfiniBand",
    ),
)

MACHINE: Final = (
    one(
        "package_watts",
        "watts",
        4000.0,
        "sum by ($on) (rate(node_rapl_package_joules_total[$w]))",
        "power of the CPU packages",
    ),
    one(
        "dram_watts",
        "watts",
        1000.0,
        "sum by ($on) (rate(node_rapl_dram_joules_total[$w]))",
        "power of the memory",
    ),
    one(
        "machine_watts",
        "watts",
        20_000.0,
        "max by ($on) (ipmi_dcmi_power_consumption_watts)",
        "power of the whole machine",
        POWER,
    ),
    one("temperature", "celsius", 120.0, "max by ($on) (node_hwmon_temp_celsius)", "hottest sensor"),
    one(
        "zone_temperature", "celsius", 120.0, "max by ($on) (node_thermal_zone_temp)", "hottest thermal zone"
    ),
    _share(
        "file_handles_used", "node_filefd_allocated", "node_filefd_maximum", "open files over their limit"
    ),
    one(
        "uptime",
        "seconds",
        1e8,
        "max by ($on) (node_time_seconds - node_boot_time_seconds)",
        "time since the node started",
    ),
    one(
        "clock_offset",
        "seconds",
        60.0,
        "max by ($on) (abs(node_timex_offset_seconds))",
        "distance from the time server",
    ),
    one(
        "clock_synchronised",
        "count",
        1.0,
        "min by ($on) (node_timex_sync_status)",
        "1 where a time server is followed",
    ),
)

NODE_QUERIES: Final = CPU + MEMORY + DISKS + NETWORK + MACHINE
