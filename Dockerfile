# One image for worker, web tier and sandbox; docker-compose.yml says which command runs where.
#
# The version pins what is in the base image well enough to build; to pin it to the byte, give the digest too:
#   docker build --build-arg PYTHON=3.11.14-slim-bookworm@sha256:<digest> .
# where <digest> is what `docker buildx imagetools inspect python:3.11.14-slim-bookworm` shows.
ARG PYTHON=3.11.14-slim-bookworm

FROM python:${PYTHON} AS wheels
# Whose models: extras of pydantic-ai-slim between commas, such as anthropic,openai. The scripted one needs none.
ARG MODELS=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# Wheels first, pinned by constraints.txt, so that what is installed comes from them alone. The environment
# has no pip: what runs needs no installer.
# hadolint ignore=DL3013
RUN pip wheel -c constraints.txt --wheel-dir /wheels ".[app,postgres]" "pydantic-ai-slim[${MODELS}]" \
    && python -m venv --without-pip /opt/turnsaga \
    && pip --python /opt/turnsaga/bin/python install --no-index --find-links /wheels --no-compile \
        "turnsaga[app,postgres]" "pydantic-ai-slim[${MODELS}]" \
    && /opt/turnsaga/bin/python -m compileall -q /opt/turnsaga/lib

FROM python:${PYTHON} AS runtime
ENV PATH=/opt/turnsaga/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
COPY --from=wheels /opt/turnsaga /opt/turnsaga

# `python -m` finds these from the working directory; they are no part of the wheel. They stay root's: what
# runs may not change them.
WORKDIR /app
COPY settings settings
COPY workflows workflows
COPY activities activities
COPY workers workers
COPY web web
COPY sandbox sandbox

RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin turnsaga \
    && install -d -o turnsaga -g turnsaga /data
USER 10001:10001
