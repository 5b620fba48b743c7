#!/usr/bin/env bash
# Installs autofuse into an environment of its own, so that it changes nothing of the job's. It needs no torch.
set -euo pipefail
place="${RUNNER_TEMP:?}/autofuse"
python3 -m venv "$place"
"$place/bin/python" -m pip install --quiet --disable-pip-version-check "${AUTOFUSE_VERSION:-${GITHUB_ACTION_PATH:?}}"
"$place/bin/autofuse" --version
