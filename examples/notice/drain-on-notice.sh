#!/bin/sh
# Runs a server that drains on SIGTERM, and sends the signal at the notice instead of when the pod is deleted:
#   drain-on-notice.sh vllm serve MODEL --shutdown-timeout 60
# Usage: drain-on-notice.sh COMMAND [ARGUMENT...]
set -eu
notice=${DRA_AGENT_NOTICE_DIR:?is not set: the claim does not request a notice file}/notice.json
"$@" &
server=$!
drains=
# Once: a second signal would end many servers at once.
drain() {
    if [ -z "$drains" ]; then
        drains=yes
        kill -TERM "$server"
    fi
}
trap drain TERM INT
while [ -z "$drains" ] && kill -0 "$server" 2>/dev/null; do
    if grep -qs '"phase": *"notice"' "$notice"; then
        drain
        break
    fi
    sleep 1 &
    wait $! || : # A signal ends this wait, unlike that of a sleep in the foreground.
done
# A signal also ends the wait for the server, which continues to drain.
while :; do
    status=0
    wait "$server" || status=$?
    kill -0 "$server" 2>/dev/null || break
done
exit "$status"
