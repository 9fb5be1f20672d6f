# The operator: core and kopf, no torch, no Ray. Build from the repository root:
#   docker build -f images/operator.Dockerfile -t longshore-operator:0.1.0 .
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY runtime/longshore runtime/longshore
COPY operator/longshore_operator operator/longshore_operator
RUN python -m venv /opt/longshore && /opt/longshore/bin/pip install --no-cache-dir '.[operator]'

FROM python:3.11-slim
COPY --from=build /opt/longshore /opt/longshore
ENV PATH=/opt/longshore/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 1000 --no-create-home --shell /usr/sbin/nologin longshore
USER 1000
ENTRYPOINT ["python", "-m", "longshore_operator"]
