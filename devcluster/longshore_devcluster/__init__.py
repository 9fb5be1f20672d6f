"""The embedded one-machine cluster: API server, scheduler, kubelet and controllers, for development and tests."""
