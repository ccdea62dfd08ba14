# One image for every part; docker-compose.yml says which command runs where.
FROM python:3.11.14-slim-bookworm

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install -c constraints.txt ".[app,postgres]"

# `python -m` finds these from the working directory; they are no part of the wheel.
COPY workflows workflows
COPY activities activities
COPY workers workers
COPY web web
COPY sandbox sandbox

RUN useradd --uid 10001 --create-home turnsaga && install -d -o turnsaga -g turnsaga /data
USER turnsaga
VOLUME /data
