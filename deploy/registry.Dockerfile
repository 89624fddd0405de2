# The registry of a split server: REST and gRPC in front, the model store behind. Holds no model, no
# torch and no runtime of models. It knows API keys, certificates and tokens of an identity provider,
# and verifies signatures of versions that arrive.
# docker build -f deploy/registry.Dockerfile -t flambeau/registry:0.1.0 .
# By digest: --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:…
# It is built in the same Debian and Python with binutils, of which nothing is shipped.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
ARG BUILD_IMAGE=python:3.11.14-bookworm

FROM ${BUILD_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY deploy/requirements requirements
RUN python -m venv tools \
    && tools/bin/pip install --require-hashes --requirement requirements/build.txt \
    && python -m venv --without-pip /opt/flambeau \
    && tools/bin/pip --python /opt/flambeau/bin/python install --no-deps --no-compile \
        --require-hashes --requirement requirements/registry.txt
COPY pyproject.toml LICENSE README.md ./
COPY flambeau flambeau
COPY model_store model_store
COPY protos protos
COPY services services
COPY training training
RUN tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && tools/bin/pip --python /opt/flambeau/bin/python install --no-deps --no-compile wheels/*.whl \
    && tools/bin/pip --python /opt/flambeau/bin/python check
# A third of what the wheels hold is read by no process: tests, the sources of what is compiled, and
# symbols for debuggers. Bytecode is made of what a start imports, by importing it.
WORKDIR /opt/flambeau/lib/python3.11/site-packages
RUN find . -type d -name tests -prune -exec rm -r {} + \
    && find . -type f -regextype posix-extended -regex '.*\.(a|c|cc|cpp|h|hpp|pxd|pxi|pyi|pyx)' -delete \
    && find . -type f -name '*.so' ! -path '*.libs/*' -exec strip --strip-unneeded {} + \
    && ../../../bin/python -c "import services.registry_server.server"

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="flambeau registry" \
      org.opencontainers.image.description="Takes versions of models and moves their aliases" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
ENV PATH=/opt/flambeau/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/flambeau PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=build /opt/flambeau /opt/flambeau
RUN install --directory --owner=10001 --group=10001 /var/lib/flambeau /models
USER 10001:10001
WORKDIR /var/lib/flambeau
EXPOSE 8007 8008 8009
# Liveness needs neither Redis nor the store; whether it is ready is for whoever sends requests here.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8007/v2/health/live', timeout=4)"]
ENTRYPOINT ["python", "-P", "-m", "services.registry_server"]
CMD ["--help"]
