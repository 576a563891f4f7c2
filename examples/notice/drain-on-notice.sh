#!/bin/sh
# Runs a server that drains on SIGTERM, and sends the signal at the notice instead of when the pod is deleted:
#   drain-on-notice.sh vllm serve MODEL --shutdown-timeout 60
# Usage: drain-on-notice.sh COMMAND [ARGUMENT...]
set -eu
notice=${DRA_AGENT_NOTICE_DIR:?is not set: the claim does not request a notice file}/notice.json
"$@" &
server=$!
trap 'kill -TERM "$server"' TERM INT
while kill -0 "$server" 2>/dev/null; do
    if grep -q '"phase": *"notice"' "$notice"; then
        kill -TERM "$server"
        break
    fi
    sleep 1 &
    wait $! || : # A signal ends this wait, unlike that of a sleep in the foreground.
done
status=0
wait "$server" || status=$?
exit "$status"
