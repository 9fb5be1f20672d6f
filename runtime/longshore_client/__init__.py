"""Jobs on a cluster, for programs: submit, watch, fetch. The command line and `longshore.client` are built on it.

`Target` finds the cluster and `Kube` asks it; `jobs`, `modules` and `transfer` do what commands do; `job` is the face
for Python programs.
"""
