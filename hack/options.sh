# Reading of command lines, for the scripts below hack; sourced, not run.
# shellcheck shell=bash

usage_error() {
    echo "${0##*/}: $*; see ${0##*/} --help" >&2
    exit 2
}

# The value of an option: `value "$@"` with the option itself first.
value() {
    [ $# -ge 2 ] && [ -n "$2" ] || usage_error "$1 needs a value"
    echo "$2"
}
