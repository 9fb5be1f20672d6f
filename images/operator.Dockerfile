# The operator: core and kopf, no torch, no Ray. `make images` builds it; by hand, from the repository root:
#   docker build -f images/operator.Dockerfile -t longshore-operator:0.1.0 .
# Another base, with Python 3.11 to 3.13: --build-arg BASE=registry.example/python@sha256:...
ARG BASE=python:3.11-slim
# Nothing is taken from this stage. Tools that fetch base images ahead of a build look for a name in the first FROM.
FROM python:3.11-slim AS default

FROM ${BASE} AS build
# Both trust the certificates of the base.
ENV UV_SYSTEM_CERTS=true PIP_CERT=/etc/ssl/certs/ca-certificates.crt
RUN python -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --disable-pip-version-check uv==0.13.8
WORKDIR /src
COPY pyproject.toml requirements.lock ./
RUN python -m venv --without-pip /opt/longshore \
    && /opt/uv/bin/uv pip install --python /opt/longshore/bin/python --no-cache --compile-bytecode \
        --require-hashes --constraints requirements.lock --extra operator -r pyproject.toml
COPY README.md LICENSE ./
COPY runtime/longshore runtime/longshore
COPY runtime/longshore_kube runtime/longshore_kube
COPY runtime/longshore_client runtime/longshore_client
COPY operator/longshore_operator operator/longshore_operator
RUN /opt/uv/bin/uv pip install --python /opt/longshore/bin/python --no-cache --compile-bytecode --no-deps \
    --preview-features build-dependency-hashes --build-constraints requirements.lock --require-build-hashes .
COPY images/check_imports.py /tmp/
RUN /opt/longshore/bin/python -I /tmp/check_imports.py 'longshore.*' 'longshore_kube.*' 'longshore_client.*' 'longshore_operator.*'

FROM ${BASE}
COPY --from=build /opt/longshore /opt/longshore
ENV PATH=/opt/longshore/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 1000 --no-create-home --shell /usr/sbin/nologin longshore
USER 1000
ENTRYPOINT ["python", "-m", "longshore_operator"]
