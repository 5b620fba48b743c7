#!/usr/bin/env bash
# Checks, once for people and annotations and once as SARIF, and says how it went; it fails where autofuse cannot run.
set -uo pipefail
autofuse="${RUNNER_TEMP:?}/autofuse/bin/autofuse"
sarif="$RUNNER_TEMP/autofuse.sarif"
read -r -a paths <<<"${AUTOFUSE_PATHS:-.}"
read -r -a arguments <<<"${AUTOFUSE_ARGUMENTS:-}"

# Options stand before `--`: a path is never taken for one.
"$autofuse" check ${arguments[@]+"${arguments[@]}"} --output-format github -- "${paths[@]}"
code=$?
"$autofuse" check ${arguments[@]+"${arguments[@]}"} --output-format sarif -- "${paths[@]}" >"$sarif" 2>/dev/null
findings=$(python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1]))["runs"][0]["results"]))' "$sarif") || {
    findings=0
    sarif=
}
{
    echo "code=$code"
    echo "findings=$findings"
    echo "sarif=$sarif"
} >>"${GITHUB_OUTPUT:?}"
"$autofuse" check ${arguments[@]+"${arguments[@]}"} --statistics -- "${paths[@]}" 2>/dev/null |
    sed 's/^/    /' >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
exit 0
