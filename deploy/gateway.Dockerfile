# The gateway: REST and gRPC in front, Redis behind. Holds no model and no torch.
# docker build -f deploy/gateway.Dockerfile -t flambeau/gateway:0.1.0 .
# By digest: --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:…
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY deploy/requirements requirements
RUN python -m venv tools \
    && tools/bin/pip install --require-hashes --requirement requirements/build.txt \
    && python -m venv --without-pip /opt/flambeau \
    && tools/bin/pip --python /opt/flambeau/bin/python install --no-deps --require-hashes \
        --requirement requirements/gateway.txt
COPY pyproject.toml LICENSE README.md ./
COPY flambeau flambeau
COPY model_store model_store
COPY protos protos
COPY services services
COPY training training
RUN tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && tools/bin/pip --python /opt/flambeau/bin/python install --no-deps wheels/*.whl \
    && tools/bin/pip --python /opt/flambeau/bin/python check

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="flambeau gateway" \
      org.opencontainers.image.description="Takes inference requests over REST and gRPC" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/flambeau/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/flambeau PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/flambeau /opt/flambeau
RUN install --directory --owner=10001 --group=10001 /var/lib/flambeau
USER 10001:10001
WORKDIR /var/lib/flambeau
EXPOSE 8000 8001 8002
# Liveness needs neither Redis nor a model; whether it is ready is for whoever sends requests here.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/v2/health/live', timeout=4)"]
ENTRYPOINT ["python", "-m", "services.gateway"]
CMD ["--help"]
