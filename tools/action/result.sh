#!/usr/bin/env bash
# Fails where something was found, if that is wanted, and always where autofuse could not do its work.
code="${AUTOFUSE_CODE:-2}"
if [ "$code" = 1 ] && [ "${AUTOFUSE_FAIL:-true}" != true ]; then
    exit 0
fi
exit "$code"
