# A worker: runs models for gateways. RUNTIME says what it can run:
#   onnx   ONNX artifacts on the CPU, without torch (the default)
#   torch  TorchScript and torch.export artifacts as well; TORCH_INDEX says where torch comes from
#   cuda   ONNX and torch on a GPU, with CUDA's libraries from wheels; the host brings the driver
# docker build -f deploy/inference.Dockerfile -t flambeau/inference:0.1.0 .
# TORCH_INDEX is `cpu` for PyTorch's own wheels for the CPU, the URL of a mirror of them, or `pip` for
# what pip is configured for: the usual index has CUDA builds under the same version, gigabytes
# larger, and the build refuses those. torch is pinned by version alone.
# By digest: --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:…
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ARG RUNTIME=onnx
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY deploy/requirements requirements
RUN python -m venv tools \
    && tools/bin/pip install --require-hashes --requirement requirements/build.txt \
    && python -m venv --without-pip /opt/flambeau \
    && tools/bin/pip --python /opt/flambeau/bin/python install --no-deps --require-hashes \
        --requirement "requirements/inference-${RUNTIME}.txt"
RUN case "$TORCH_INDEX" in \
        pip) set -- ;; \
        *://*) set -- --index-url "$TORCH_INDEX" ;; \
        *) set -- --index-url "https://download.pytorch.org/whl/$TORCH_INDEX" ;; \
    esac \
    && if test "$RUNTIME" = torch; then \
        tools/bin/pip --python /opt/flambeau/bin/python install --no-deps "$@" "$TORCH" \
        && /opt/flambeau/bin/python -c \
            "from torch.version import cuda; assert not cuda, 'a CUDA build: TORCH_INDEX=cpu'"; \
    fi
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
LABEL org.opencontainers.image.title="flambeau inference" \
      org.opencontainers.image.description="Runs models for gateways" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/flambeau/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/flambeau \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/flambeau /opt/flambeau
RUN install --directory --owner=10001 --group=10001 /var/lib/flambeau /models
USER 10001:10001
WORKDIR /var/lib/flambeau
EXPOSE 8002
# Alive, whatever models and Redis do: a worker without Redis waits for it.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8002/metrics', timeout=4)"]
ENTRYPOINT ["python", "-P", "-m", "services.inference"]
CMD ["--help"]
