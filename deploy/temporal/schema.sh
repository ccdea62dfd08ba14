#!/bin/sh
# Creates Temporal's databases, or brings them to the schema that this image carries. Safe to run again.
set -eu

SQL_PASSWORD="$(cat "$SQL_PASSWORD_FILE")"
export SQL_PASSWORD

prepare() { # <database> <folder of its schema>
  for step in create "setup-schema -v 0.0" "update-schema -d /etc/temporal/schema/postgresql/v12/$2/versioned"; do
    # Unquoted: a step is several words.
    # shellcheck disable=SC2086
    temporal-sql-tool --plugin postgres12 --ep "$SQL_HOST" -p 5432 -u "$SQL_USER" --db "$1" $step
  done
}

prepare temporal temporal
prepare temporal_visibility visibility
