"""Environment variables of Ray in a job. Ray reads them when it is imported: set them before, in driver and nodes."""

from collections.abc import Mapping

RAY_ENVIRONMENT: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A thread that still waits for an answer when all is shut down must not connect again.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # A worker's node ends this soon after its head: it cannot join another head, and its pod must start again.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    # A lost pod is noticed in about 5 s, a hanging one in 15 s: less would declare busy pods dead.
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
    # What runs on an ending pod is known to be lost: there is nothing to wait for.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # GPUs are assigned by the job, and memory is limited by Kubernetes.
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    "RAY_memory_monitor_refresh_ms": "0",
    # At Ray's own 15, engines and trainers would get a thirtieth of a core beside any other program of their node.
    "RAY_worker_niceness": "0",
}
