#!/bin/sh
# Waits until the cluster is well, and registers the namespace if it isn't there. Safe to run again.
# The server's address and the namespace come from TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE.
set -eu

patience=60
until temporal operator cluster health >/dev/null 2>&1; do
  patience=$((patience - 1))
  if [ "$patience" -le 0 ]; then
    echo "namespace: Temporal at $TEMPORAL_ADDRESS isn't well; see its log" >&2
    exit 1
  fi
  sleep 1
done

temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1 ||
  temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "$RETENTION"
