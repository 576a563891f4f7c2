{{/* One agent DaemonSet for each pool of nodes, and one for the nodes outside all pools. */}}

{{/*
Sets `contexts` of a dict with `root`: the context of each DaemonSet. The values of a pool replace those of the release; maps
are merged.
*/}}
{{- define "dra-agent.agents" -}}
{{- $root := .root }}
{{- include "dra-agent.checkPools" $root }}
{{- $pools := $root.Values.pools }}
{{- if $root.Values.defaultPool.create }}
{{- $pools = prepend $pools dict }}
{{- end }}
{{- $contexts := list }}
{{- range $pool := $pools }}
{{- $values := deepCopy $root.Values }}
{{- include "dra-agent.overlay" (dict "base" $values "over" (omit $pool "name")) }}
{{- $_ := set $values "pool" (get $pool "name") }}
{{- $context := dict "Values" $values "Release" $root.Release "Chart" $root.Chart "Files" $root.Files }}
{{- $contexts = append $contexts $context }}
{{- end }}
{{- $_ := set . "contexts" $contexts }}
{{- end }}

{{/* Puts the values in `over` into `base`. Sprig's mergeOverwrite ignores false, 0 and empty values. */}}
{{- define "dra-agent.overlay" -}}
{{- $base := .base }}
{{- range $key, $value := .over }}
{{- if and (kindIs "map" $value) (kindIs "map" (get $base $key)) }}
{{- include "dra-agent.overlay" (dict "base" (get $base $key) "over" $value) }}
{{- else }}
{{- $_ := set $base $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* Two agents on one node would compete for its devices, so no node may be in two pools. */}}
{{- define "dra-agent.checkPools" -}}
{{- if not (or .Values.pools .Values.defaultPool.create) }}
{{- fail "defaultPool.create: without it, `pools` must have at least one pool" }}
{{- end }}
{{- $earlier := list }}
{{- range $pool := .Values.pools }}
{{- range $other := $earlier }}
{{- if eq $pool.name $other.name }}
{{- fail (printf "pools: two pools have the name %q" $pool.name) }}
{{- end }}
{{- $disjoint := false }}
{{- range $key, $value := $pool.nodeSelector }}
{{- if and (hasKey $other.nodeSelector $key) (ne $value (get $other.nodeSelector $key)) }}
{{- $disjoint = true }}
{{- end }}
{{- end }}
{{- if not $disjoint }}
{{- fail (printf "pools: a node can be in pool %q and in pool %q: their nodeSelectors must have different values for the same label" $other.name $pool.name) }}
{{- end }}
{{- end }}
{{- $earlier = append $earlier $pool }}
{{- end }}
{{- end }}

{{/* Not empty if an agent has its own network namespace, so that a NetworkPolicy applies to it. */}}
{{- define "dra-agent.podNetwork" -}}
{{- $agents := dict "root" . }}
{{- include "dra-agent.agents" $agents }}
{{- range $agents.contexts }}
{{- if not .Values.hostNetwork }}true{{ end }}
{{- end }}
{{- end }}

{{- define "dra-agent.agentName" -}}
{{- if .Values.pool }}
{{- printf "%s-%s" (include "dra-agent.fullname" . | trunc (sub 62 (len .Values.pool) | int) | trimSuffix "-") .Values.pool }}
{{- else }}
{{- include "dra-agent.fullname" . }}
{{- end }}
{{- end }}

{{- define "dra-agent.poolLabel" -}}
{{- printf "%s-pool" (include "dra-agent.name" . | trunc 58 | trimSuffix "-") }}
{{- end }}

{{/*
The selector of a DaemonSet is immutable, and must not match the pods of another one. The default pool has the labels that the
chart used before it had pools.
*/}}
{{- define "dra-agent.agentSelector" -}}
{{- if .Values.pool -}}
app.kubernetes.io/name: {{ include "dra-agent.poolLabel" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
dra-agent.internal/pool: {{ .Values.pool }}
{{- else }}
{{- include "dra-agent.selectorLabels" . }}
{{- end }}
{{- end }}

{{- define "dra-agent.agentLabels" -}}
{{- $labels := include "dra-agent.labels" . | fromYaml }}
{{- include "dra-agent.overlay" (dict "base" $labels "over" (include "dra-agent.agentSelector" . | fromYaml)) }}
{{- toYaml $labels }}
{{- end }}

{{/*
With the pod network, the new agent registers before the old one stops, so requests for claims are always answered and the
kubelet has no reason to remove the node's slices. Two agents cannot listen on one port of the node's network.
*/}}
{{- define "dra-agent.updateStrategy" -}}
{{- $strategy := .Values.updateStrategy -}}
type: {{ $strategy.type }}
{{- if eq $strategy.type "RollingUpdate" }}
rollingUpdate:
  {{- if or .Values.hostNetwork (has (toString $strategy.maxSurge) (list "0" "0%")) }}
  maxSurge: 0
  maxUnavailable: {{ $strategy.maxUnavailable }}
  {{- else }}
  maxSurge: {{ $strategy.maxSurge }}
  maxUnavailable: 0
  {{- end }}
{{- end }}
{{- end }}

{{/* The values of an agent that exclude or require each other. The schema knows single values only. */}}
{{- define "dra-agent.check" -}}
{{- $where := .where }}
{{- with .agent }}
{{- include "dra-agent.checkConfig" (dict "agent" . "where" $where) }}
{{- $partitions := false }}
{{- $parsed := dict "config" .Values.config }}
{{- include "dra-agent.parseConfig" $parsed }}
{{- range dig "inventory" "partition" (list) $parsed.table }}
{{- if eq .mode "mig" }}
{{- $partitions = true }}
{{- end }}
{{- end }}
{{- if and $partitions (ne .Values.mig "partition") (not .Values.privileged) }}
{{- fail (printf "%sconfig: [[inventory.partition]] with mode = \"mig\" requires the permission to partition GPUs: set mig: partition" $where) }}
{{- end }}
{{- if and (eq .Values.mig "partition") (not $partitions) }}
{{- fail (printf "%smig: partition grants permissions that nothing uses: config has no [[inventory.partition]] with mode = \"mig\"; set mig: read to publish existing MIG instances only" $where) }}
{{- end }}
{{- if and .Values.hostPID (not .Values.privileged) }}
{{- fail (printf "%shostPID: requires privileged: true, to read information about other users' processes" $where) }}
{{- end }}
{{- range $key, $_ := .Values.podLabels }}
{{- if has $key (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "dra-agent.internal/pool") }}
{{- fail (printf "%spodLabels: the chart sets %s, which selects the pods" $where $key) }}
{{- end }}
{{- end }}
{{- range $key, $_ := .Values.podAnnotations }}
{{- if has $key (list "kubectl.kubernetes.io/default-container" "dra-agent.internal/config-sha256") }}
{{- fail (printf "%spodAnnotations: the chart sets %s" $where $key) }}
{{- end }}
{{- end }}
{{- include "dra-agent.checkExtras" (dict "agent" . "where" $where) }}
{{- end }}
{{- end }}

{{/*
Extra arguments, variables and volumes must not repeat those of the chart: the API server rejects some duplicates, and of others
the last one applies. The admission policies restrict the agent by the node and the driver that the chart sets.
*/}}
{{- define "dra-agent.checkExtras" -}}
{{- $where := .where }}
{{- with .agent }}
{{- range .Values.extraArgs }}
{{- if regexMatch "^--(no-)?(standalone|kubeconfig|node-name|driver-name|pod-uid)(=|$)" . }}
{{- fail (printf "%sextraArgs: %s would replace the identity that the chart gives the agent" $where .) }}
{{- end }}
{{- end }}
{{- $names := list "DRA_AGENT_STANDALONE" "DRA_AGENT_KUBECONFIG" }}
{{- range list "NODE_NAME" "POD_UID" "CONFIG" "DRIVER_NAME" "KUBELET_DIR" "CDI_DIR" "STATE_DIR" "NET_ROOT" "METRICS_ADDRESS" "HEALTH_ADDRESS" "METRICS_TLS_CERT" "METRICS_TLS_KEY" "METRICS_TOKEN_FILE" "CLAIM_STATUS" "SECOND_MANAGER" "NODE_LABELS" "LOG_LEVEL" "LOG_FORMAT" "SIMULATE" "NVIDIA_DRIVER_ROOT" }}
{{- $names = append $names (printf "DRA_AGENT_%s" .) }}
{{- end }}
{{- if .Values.apiServer.host }}
{{- $names = append $names "KUBERNETES_SERVICE_HOST" }}
{{- end }}
{{- if .Values.apiServer.port }}
{{- $names = append $names "KUBERNETES_SERVICE_PORT" }}
{{- end }}
{{- if eq .Values.runtimeClassName "nvidia" }}
{{- $names = concat $names (list "NVIDIA_VISIBLE_DEVICES" "NVIDIA_DRIVER_CAPABILITIES") }}
{{- end }}
{{- if ne .Values.mig "none" }}
{{- $names = append $names "NVIDIA_MIG_MONITOR_DEVICES" }}
{{- end }}
{{- if eq .Values.mig "partition" }}
{{- $names = append $names "NVIDIA_MIG_CONFIG_DEVICES" }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if has .name $names }}
{{- fail (printf "%sextraEnv: the chart sets %s; use the value for it" $where .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- $names = list "config" "tmp" "plugin" "registry" "cdi" "static-cdi" "state" "run" "sys" "dev" "net" "dbus" "nfd" "pod-resources" "nvidia-driver" "metrics-tls" "metrics-token" }}
{{- range .Values.extraVolumes }}
{{- if has .name $names }}
{{- fail (printf "%sextraVolumes: the chart, or an earlier entry, has a volume %q" $where .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- $paths := list "/etc/dra-agent" "/tmp" "/run/dra-agent" "/sys" "/dev" "/run/host-net" "/run/dbus" (.Values.nodeLabels | eq "nfd" | ternary "/etc/kubernetes/node-feature-discovery/features.d" "") "/etc/metrics-tls" "/etc/metrics-token" .Values.cdiDir .Values.staticCdiDir .Values.stateDir }}
{{- $paths = concat $paths (list (printf "%s/plugins_registry" .Values.kubeletDir) (printf "%s/pod-resources" .Values.kubeletDir) (printf "%s/plugins/%s" .Values.kubeletDir .Values.driverName) (include "dra-agent.nvidiaDriverMount" .)) }}
{{- range .Values.extraVolumeMounts }}
{{- $path := trimSuffix "/" .mountPath }}
{{- if has $path $paths }}
{{- fail (printf "%sextraVolumeMounts: the chart, or an earlier entry, mounts %s" $where $path) }}
{{- end }}
{{- $paths = append $paths $path }}
{{- end }}
{{- end }}
{{- end }}

{{/* What is mounted for the driver root. Below /run, its parent: a driver container removes and creates its directory, and
announces next to it whether the driver works. Elsewhere, the root alone: its parent may hide directories of the image. */}}
{{- define "dra-agent.nvidiaDriverMount" -}}
{{- with .Values.nvidia.driverRoot }}
{{- if and (not $.Values.privileged) (not $.Values.runtimeClassName) }}
{{- fail (printf "%snvidia.driverRoot: requires privileged: true, or a runtimeClassName (nvidia): a container may not open NVIDIA's device nodes otherwise" ($.Values.pool | empty | ternary "" (printf "pool %q: " $.Values.pool))) }}
{{- end }}
{{- $root := eq . "auto" | ternary "/run/nvidia/driver" . }}
{{- if regexMatch "^/run/[^/]+/" $root }}{{ dir $root }}{{ else }}{{ $root }}{{ end }}
{{- end }}
{{- end }}

{{/*
The affinity from the values. Each of its terms also excludes nodes with the labels in avoidNodeLabels, and, for the default
pool, the nodes of all other pools: those that have all labels of a pool. With nodes: accelerators, each term also requires one
of the labels.
*/}}
{{- define "dra-agent.affinity" -}}
{{- $avoid := list }}
{{- range $key, $value := .Values.avoidNodeLabels }}
{{- $avoid = append $avoid (dict "key" $key "operator" "NotIn" "values" (list $value)) }}
{{- end }}
{{- $alternatives := list $avoid }}
{{- if not .Values.pool }}
{{- /* By name, so that a change of their order restarts no agent. */}}
{{- $pools := dict }}
{{- range .Values.pools }}
{{- $_ := set $pools .name . }}
{{- end }}
{{- range $pool := $pools }}
{{- $next := list }}
{{- range $expressions := $alternatives }}
{{- range $key, $value := $pool.nodeSelector }}
{{- $next = append $next (append $expressions (dict "key" $key "operator" "NotIn" "values" (list $value))) }}
{{- end }}
{{- end }}
{{- $alternatives = $next }}
{{- end }}
{{- end }}
{{- if eq .Values.nodes "accelerators" }}
{{- $next := list }}
{{- range $expressions := $alternatives }}
{{- range $label := $.Values.acceleratorLabels }}
{{- $next = append $next (append $expressions (dict "key" $label "operator" "In" "values" (list "true"))) }}
{{- end }}
{{- end }}
{{- $alternatives = $next }}
{{- end }}
{{- $affinity := deepCopy .Values.affinity }}
{{- if ne (toJson $alternatives) "[[]]" }}
{{- $node := dig "nodeAffinity" (dict) $affinity }}
{{- $required := dig "requiredDuringSchedulingIgnoredDuringExecution" (dict) $node }}
{{- $terms := list }}
{{- range $term := dig "nodeSelectorTerms" (list (dict)) $required }}
{{- range $alternatives }}
{{- $expressions := concat (dig "matchExpressions" (list) $term) . }}
{{- $terms = append $terms (merge (dict "matchExpressions" $expressions) $term) }}
{{- end }}
{{- end }}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $node }}
{{- end }}
{{- if $affinity }}{{ toYaml $affinity }}{{ end }}
{{- end }}
