# The gateway: REST and gRPC in front, Redis behind. Holds no model and no torch. CALLERS says who
# it can know:
#   keys   API keys and certificates (the default)
#   auth   tokens of an identity provider (`jwt_keys`) as well
# docker build -f deploy/gateway.Dockerfile -t flambeau/gateway:0.1.0 .
# By digest: --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:…
# It is built in the same Debian and Python with binutils, of which nothing is shipped.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
ARG BUILD_IMAGE=python:3.11.14-bookworm

FROM ${BUILD_IMAGE} AS build
ARG CALLERS=keys
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY deploy/requirements requirements
RUN python -m venv tools \
    && tools/bin/pip install --require-hashes --requirement requirements/build.txt \
    && python -m venv --without-pip /opt/flambeau \
    && tools/bin/pip --python /opt/flambeau/bin/python install --no-deps --no-compile \
        --require-hashes --requirement "requirements/gateway-${CALLERS}.txt"
COPY pyproject.toml LICENSE README.md ./
COPY flambeau flambeau
COPY model_store model_store
COPY protos protos
COPY services services
COPY training training
RUN tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir wheels . \
    && tools/bin/pip --python /opt/flambeau/bin/python install --no-deps --no-compile wheels/*.whl \
    && tools/bin/pip --python /opt/flambeau/bin/python check
# A third of what the wheels hold is read by no gateway: tests, the sources of what is compiled, and
# symbols for debuggers, NumPy's compilers, and lexers of languages other than Python. Bytecode is
# made of what a start imports, by importing it.
WORKDIR /opt/flambeau/lib/python3.11/site-packages
RUN find . -type d -name tests -prune -exec rm -r {} + \
    && rm -rf numpy/f2py numpy/distutils \
    && find pygments/lexers -name '*.py' ! -name __init__.py ! -name _mapping.py ! -name python.py -delete \
    && find . -type f -regextype posix-extended -regex '.*\.(a|c|cc|cpp|h|hpp|pxd|pxi|pyi|pyx)' -delete \
    && find . -type f -name '*.so' ! -path '*.libs/*' -exec strip --strip-unneeded {} + \
    && ../../../bin/python -c "import services.gateway.server"

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
ENTRYPOINT ["python", "-P", "-m", "services.gateway"]
CMD ["--help"]
