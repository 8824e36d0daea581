#!/usr/bin/env bash
# titan_train under the launchers of other projects: those that are installed, or all of them in the long tests.
set -u
checkout=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
if [ -n "${TITAN_TEST_FULL:-}" ]; then
  exec "$checkout/scripts/test_launchers.sh"
fi
exec "$checkout/scripts/test_launchers.sh" --installed
