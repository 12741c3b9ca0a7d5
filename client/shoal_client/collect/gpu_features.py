# SPDX-License-Identifier: Apache-2.0
"""Live features from DCGM exporter, per GPU or MIG instance and reduced to the node in `gpus.py`.

Under MIG `DCGM_FI_DEV_GPU_UTIL` and its like are absent or 0, which says nothing; the profiling fields
(`DCGM_FI_PROF_*`) exist per instance with `GPU_I_ID` and `GPU_I_PROFILE`. Labels of pods are dropped by the
aggregation: a shared device is repeated for each pod that uses it.
"""

from __future__ import annotations

from typing import Final

from shoal_client.collect.queries import DCGM, LiveFeature, Query, Reduce

DEVICE: Final = "UUID, gpu, modelName, GPU_I_ID, GPU_I_PROFILE, $on"


def _gpu(field: str, *features: LiveFeature, scale: str = "", rate: bool = False) -> Query:
    series = f"rate(DCGM_FI_{field}[$w])" if rate else f"DCGM_FI_{field}"
    return Query(DCGM, f"{scale}max by ({DEVICE}) ({series})", features, devices=True)


def _ratio(name: str, doc: str, reduce: Reduce = "mean") -> LiveFeature:
    return LiveFeature(name, "ratio", 0.0, 1.0, doc, reduce=reduce)


def _sum(name: str, unit: str, high: float, doc: str) -> LiveFeature:
    return LiveFeature(name, unit, 0.0, high, doc, reduce="sum")


def _max(name: str, unit: str, high: float, doc: str) -> LiveFeature:
    return LiveFeature(name, unit, 0.0, high, doc, reduce="max")


FREE: Final = (
    f"max by ({DEVICE}) (DCGM_FI_DEV_FB_FREE)"
    f" / (max by ({DEVICE}) (DCGM_FI_DEV_FB_FREE) + max by ({DEVICE}) (DCGM_FI_DEV_FB_USED))"
)

NO_MIG: Final = frozenset({"gpu_utilisation", "gpu_copy_utilisation", "gpu_encoder", "gpu_decoder"})
"""Features whose fields say nothing about a device under MIG."""

GPU_QUERIES: Final = (
    _gpu(
        "DEV_GPU_UTIL",
        _ratio("gpu_utilisation", "time with a kernel on the GPU; not under MIG"),
        scale="0.01 * ",
    ),
    _gpu(
        "DEV_MEM_COPY_UTIL",
        _ratio("gpu_copy_utilisation", "time with memory traffic; not under MIG"),
        scale="0.01 * ",
    ),
    _gpu("DEV_ENC_UTIL", _ratio("gpu_encoder", "use of video encoders; not under MIG"), scale="0.01 * "),
    _gpu("DEV_DEC_UTIL", _ratio("gpu_decoder", "use of video decoders; not under MIG"), scale="0.01 * "),
    _gpu("PROF_GR_ENGINE_ACTIVE", _ratio("gpu_active", "time in which the compute engine is active")),
    _gpu("PROF_SM_ACTIVE", _ratio("gpu_sm_active", "cycles in which an SM has a warp")),
    _gpu("PROF_SM_OCCUPANCY", _ratio("gpu_sm_occupancy", "resident over possible warps")),
    _gpu("PROF_PIPE_TENSOR_ACTIVE", _ratio("gpu_tensor_active", "cycles of the tensor cores")),
    _gpu("PROF_PIPE_FP64_ACTIVE", _ratio("gpu_fp64_active", "cycles of the 64-bit pipes")),
    _gpu("PROF_PIPE_FP32_ACTIVE", _ratio("gpu_fp32_active", "cycles of the 32-bit pipes")),
    _gpu("PROF_PIPE_FP16_ACTIVE", _ratio("gpu_fp16_active", "cycles of the 16-bit pipes")),
    _gpu("PROF_DRAM_ACTIVE", _ratio("gpu_memory_active", "cycles of the memory interface")),
    Query(
        DCGM,
        FREE,
        (_ratio("gpu_memory_free", "free GPU memory, weighed by instance", "share"),),
        devices=True,
    ),
    Query(
        DCGM,
        f"max by ({DEVICE}) (DCGM_FI_DEV_FB_USED)",
        (LiveFeature("gpu_memory_used", "MiB", 0.0, 2.0**21, "GPU memory in use", reduce="sum_instances"),),
        devices=True,
    ),
    _gpu("DEV_POWER_USAGE", _sum("gpu_watts", "watts", 16_000.0, "power of the GPUs")),
    _gpu("DEV_GPU_TEMP", _max("gpu_temperature", "celsius", 120.0, "hottest GPU")),
    _gpu("DEV_MEMORY_TEMP", _max("gpu_memory_temperature", "celsius", 120.0, "hottest GPU memory")),
    _gpu("DEV_SM_CLOCK", LiveFeature("gpu_clock", "MHz", 0.0, 4000.0, "slowest SM clock", reduce="min")),
    _gpu("DEV_XID_ERRORS", _max("gpu_last_xid", "count", 255.0, "largest XID code that was reported last")),
    Query(
        DCGM,
        f"max by ({DEVICE}) (changes(DCGM_FI_DEV_XID_ERRORS[1h]))",
        (_sum("gpu_xid_changes", "1/h", 1000.0, "changes of the last XID code"),),
        devices=True,
    ),
    _gpu("PROF_PCIE_TX_BYTES", _sum("gpu_pcie_sent", "bytes/s", 1e12, "sent by the GPUs over PCIe")),
    _gpu("PROF_PCIE_RX_BYTES", _sum("gpu_pcie_received", "bytes/s", 1e12, "received by the GPUs over PCIe")),
    _gpu(
        "DEV_PCIE_REPLAY_COUNTER",
        _sum("gpu_pcie_replays", "1/s", 1e6, "PCIe transfers sent again"),
        rate=True,
    ),
    _gpu("PROF_NVLINK_TX_BYTES", _sum("gpu_nvlink_sent", "bytes/s", 1e13, "sent over NVLink")),
    _gpu("PROF_NVLINK_RX_BYTES", _sum("gpu_nvlink_received", "bytes/s", 1e13, "received over NVLink")),
    _gpu(
        "DEV_POWER_VIOLATION",
        _max("gpu_power_capped", "ns/s", 1e9, "time held back by the power limit"),
        rate=True,
    ),
    _gpu("DEV_THERMAL_VIOLATION", _max("gpu_heat_capped", "ns/s", 1e9, "time held back by heat"), rate=True),
    _gpu(
        "DEV_ECC_DBE_VOL_TOTAL",
        _sum("gpu_memory_errors", "count", 1e6, "double-bit errors since the driver loaded"),
    ),
    _gpu(
        "DEV_ROW_REMAP_FAILURE",
        _max("gpu_remap_failed", "count", 1.0, "1 where GPU memory could not be repaired"),
    ),
)
