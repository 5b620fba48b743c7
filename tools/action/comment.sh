#!/usr/bin/env bash
# Puts the diff of the safe edits under the pull request, in one comment that later runs replace.
set -uo pipefail
autofuse="${RUNNER_TEMP:?}/autofuse/bin/autofuse"
mark="<!-- autofuse -->"
body="$RUNNER_TEMP/autofuse-comment.md"
read -r -a paths <<<"${AUTOFUSE_PATHS:-.}"
diff=$("$autofuse" rewrite --diff -- "${paths[@]}" 2>/dev/null | head -c 60000)

existing=$(gh api --paginate "repos/${GITHUB_REPOSITORY:?}/issues/${PULL_REQUEST:?}/comments" \
    --jq ".[] | select(.body | startswith(\"$mark\")) | .id" 2>/dev/null | head -n 1)
if [ -z "$diff" ] && [ -z "$existing" ]; then
    exit 0
fi
# The fence is longer than any run of backticks in the diff, which is a stranger's text.
fence=$(printf '%s\n```' "$diff" | grep -o '`*' | awk '{ if (length > n) n = length } END { while (n-- >= 0) printf "`" }')
if [ -n "$diff" ]; then
    printf '%s\nautofuse would make these safe edits (`autofuse rewrite`):\n\n%sdiff\n%s\n%s\n' "$mark" "$fence" "$diff" "$fence" >"$body"
else
    printf '%s\nautofuse has no safe edits to make.\n' "$mark" >"$body"
fi
if [ -n "$existing" ]; then
    gh api --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$existing" --field "body=@$body" --silent
else
    gh api --method POST "repos/$GITHUB_REPOSITORY/issues/$PULL_REQUEST/comments" --field "body=@$body" --silent
fi || echo "::warning::autofuse could not comment: it needs the permission pull-requests, write."
