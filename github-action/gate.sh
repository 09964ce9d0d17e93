#!/usr/bin/env bash
# The steps of the Action: `gate.sh check` and `gate.sh diff`, in the checkout that holds the plans. What is asked comes
# from the environment: PLANS, MODELS, RESOLVE, JUNIT, SARIF, BASE, FAIL_IF, ALLOW_DELETED. Whatever cannot be answered fails the job.
set -euo pipefail

failed=0

# The text as GitHub wants it: in the message of a workflow command, or in a property of one.
message() { local text=${1//'%'/%25}; text=${text//$'\r'/%0D}; printf '%s' "${text//$'\n'/%0A}"; }
property() { local text; text=$(message "$1"); text=${text//:/%3A}; printf '%s' "${text//,/%2C}"; }

# The name of a file as a code span of Markdown, on one line and without what ends a span or a cell.
code_span() { printf '`%s`' "$(printf '%q' "$1" | tr -d '`|')"; }

fail() { # FILE TITLE TEXT
    printf '::error file=%s,title=%s::%s\n' "$(property "$1")" "$(property "$2")" "$(message "$3")"
    failed=1
}

# Runs a command whose output is not ours: nothing in it is a workflow command.
quoted() {
    local token code=0
    token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    printf '::stop-commands::%s\n' "$token"
    "$@" || code=$?
    printf '\n::%s::\n' "$token"
    return "$code"
}

# The patterns of PLANS, one a line, as git takes them.
patterns=()
while IFS= read -r line; do
    if [ -n "$line" ]; then patterns+=(":(glob)$line"); fi
done <<< "${PLANS:-}"
if [ "${#patterns[@]}" = 0 ]; then
    fail "" "no plans" "the input 'plans' is empty"
    exit 2
fi

check() {
    local plans=() plan arguments=() model
    while IFS= read -r -d '' plan; do
        if [ -e "$plan" ]; then plans+=("$plan"); fi
    done < <(git ls-files -z --cached --others --exclude-standard --deduplicate -- "${patterns[@]}")
    if [ "${#plans[@]}" = 0 ]; then
        fail "" "no plans" "no file matches the input 'plans': $PLANS"
        exit 2
    fi
    while IFS= read -r model; do
        if [ -n "$model" ]; then arguments+=(--model "$model"); fi
    done <<< "${MODELS:-}"
    if [ "${RESOLVE:-false}" = true ]; then arguments+=(--resolve); fi
    if [ -n "${JUNIT:-}" ]; then arguments+=(--junit "$JUNIT"); fi
    if [ -n "${SARIF:-}" ]; then arguments+=(--sarif "$SARIF"); fi
    local code=0
    quoted shardplan check "${arguments[@]}" -- "${plans[@]}" || code=$?
    if [ "$code" != 0 ]; then
        fail "" "stale plans" "shardplan check ended with exit code $code: some plans are stale or cannot be checked; the log of this step says which"
    fi
    exit "$code"
}

# diff OLD NEW: OLD as it is at the base.
compare() {
    local old=$1 new=$2 code=0
    if ! git show "$BASE:./$old" > "$scratch/old.plan.json"; then
        fail "$new" "no old plan" "git cannot show the plan as it is at the base $BASE"
        return
    fi
    shardplan diff --exit-zero --format markdown -- "$scratch/old.plan.json" "$new" >> "$report" || code=$?
    if [ "$code" != 0 ]; then
        fail "$new" "cannot compare" "shardplan diff ended with exit code $code; the log of this step says why"
        return
    fi
    shardplan diff --exit-zero --format github -- "$scratch/old.plan.json" "$new"
    if [ "$old" != "$new" ]; then
        printf '\nThe plan was %s before.\n\n' "$(code_span "$old")" >> "$report"
    fi
    if [ -n "${FAIL_IF:-}" ]; then
        shardplan diff --quiet --fail-if "$FAIL_IF" -- "$scratch/old.plan.json" "$new" > /dev/null || code=$?
        case $code in
            0) ;;
            1) fail "$new" "plan gets worse" "the plan changes by more than is allowed: $FAIL_IF" ;;
            *) fail "$new" "cannot compare" "shardplan diff ended with exit code $code" ;;
        esac
    fi
}

deleted() {
    printf '**%s** is deleted\n\n' "$(code_span "$1")" >> "$report"
    if [ -n "${FAIL_IF:-}" ] && [ "${ALLOW_DELETED:-false}" != true ]; then
        fail "$1" "plan deleted" "the plan is gone, so nothing can be compared; set allow-deleted if that is meant"
    else
        printf '::warning file=%s,title=plan deleted::the plan is gone\n' "$(property "$1")"
    fi
}

diff() {
    if ! git cat-file -e "$BASE^{commit}" 2> /dev/null; then
        fail "" "no base" "the base revision $BASE is not in this checkout: give actions/checkout the input fetch-depth: 0"
        exit 2
    fi
    scratch=$(mktemp -d -p "${RUNNER_TEMP:-${TMPDIR:-/tmp}}")
    report=$scratch/report.md
    : > "$report"
    local list=$scratch/list status path other
    # To a file first: what fails inside of <(...) is not seen.
    git diff -z --relative --name-status --find-renames=25% --diff-filter=ADMRT "$BASE" -- "${patterns[@]}" > "$list"
    while IFS= read -r -d '' status; do
        IFS= read -r -d '' path
        case $status in
            R*) IFS= read -r -d '' other; compare "$path" "$other" ;;
            M | T) compare "$path" "$path" ;;
            D) deleted "$path" ;;
            A) printf '**%s** is new\n\n' "$(code_span "$path")" >> "$report" ;;
        esac
    done < "$list"
    cat "$report" >> "${GITHUB_STEP_SUMMARY:-/dev/null}"
    printf 'report=%s\n' "$report" >> "${GITHUB_OUTPUT:-/dev/null}"
    exit "$failed"
}

case ${1:-} in
    check | diff) "$1" ;;
    *) echo "usage: gate.sh check|diff" >&2; exit 2 ;;
esac
